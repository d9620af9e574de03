"""/api/clusters/{cluster}/quotas."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import ClusterName, Rows
from penstock.console.operations.paging import RowPage
from penstock.console.operations.quotas import QuotaRow

router = APIRouter(prefix="/clusters/{cluster}/quotas", tags=["quotas"])

# Which names and keys there are, and what goes with what, is the operation's to say.
Key = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z_]+$")]
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
Entity = Annotated[
    dict[str, Name | None],
    Field(
        min_length=1,
        max_length=2,
        description="Names by type (user, client-id, ip); null stands for all that have no quota of their own.",
    ),
]


class QuotaRequest(BaseModel):
    entity: Entity
    limits: dict[str, Annotated[float, Field(ge=0, le=2**63 - 1, allow_inf_nan=False)]] = Field(
        min_length=1, max_length=5, description="A second, on each broker."
    )


class QuotaRemoval(BaseModel):
    entity: Entity
    keys: list[Key] = Field(default_factory=list, max_length=5, description="Empty: all limits.")


@router.get("")
async def list_quotas(console: TheConsole, caller: TheCaller, cluster: ClusterName, rows: Rows) -> RowPage[QuotaRow]:
    return await console.quotas.list(caller, cluster, rows)


@router.put("")
async def set_quota(console: TheConsole, caller: TheCaller, cluster: ClusterName, body: QuotaRequest) -> QuotaRow:
    """Sets limits; other limits of the same entity stay."""
    return await console.quotas.set(caller, cluster, body.entity, body.limits)


@router.post("/removal", status_code=204)
async def remove_quota(console: TheConsole, caller: TheCaller, cluster: ClusterName, body: QuotaRemoval) -> None:
    await console.quotas.remove(caller, cluster, body.entity, tuple(body.keys))
