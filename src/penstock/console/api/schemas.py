"""/api/clusters/{cluster}/topics/{topic}/schemas: what keys and values are decoded with."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import ClusterName, TopicName
from penstock.console.schemas.schema_rule import MAX_SCHEMA_ID, MAX_TEXT, SchemaFormat, SchemaRule, Side

router = APIRouter(prefix="/clusters/{cluster}/topics/{topic}/schemas", tags=["messages"])

SchemaId = Annotated[str, Path(max_length=64)]


class SchemaBody(BaseModel):
    side: Side
    format: SchemaFormat
    is_framed: bool = Field(True, description="Five bytes of a registry come before the data.")
    schema_id: int | None = Field(None, ge=0, le=MAX_SCHEMA_ID, description="Only for data framed with this id.")
    message: str = Field("", max_length=500, description="Protobuf: the full name of the message.")
    text: str = Field("", max_length=MAX_TEXT, description="Avro: JSON. Protobuf: a FileDescriptorSet in base64.")

    def rule(self) -> SchemaRule:
        return SchemaRule("", "", self.side, self.format, self.is_framed, self.schema_id, self.message, self.text)


@router.get("")
async def list_schemas(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName
) -> tuple[SchemaRule, ...]:
    return await console.schemas.list(caller, cluster, topic)


@router.post("", status_code=201)
async def add_schema(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: SchemaBody
) -> SchemaRule:
    """Decodes messages with a schema from now on."""
    return await console.schemas.add(caller, cluster, topic, body.rule())


@router.delete("/{schema}", status_code=204)
async def remove_schema(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, schema: SchemaId
) -> None:
    await console.schemas.remove(caller, cluster, topic, schema)
