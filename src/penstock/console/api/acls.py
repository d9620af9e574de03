"""/api/clusters/{cluster}/acls."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import ClusterName, Rows
from penstock.console.operations.acls import AccessDecision, AclBinding, Authorizer, RemovalEffect
from penstock.console.operations.paging import ItemResult, RowPage

router = APIRouter(prefix="/clusters/{cluster}/acls", tags=["acls"])

MAX_ACLS = 1000
_PLAIN = r"^[^\x00-\x1f\x7f]+$"
# The types that Kafka's clients know; ACLs about users and delegation tokens are not among them.
Type = Literal["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"]
Operation = Literal[
    "ALL",
    "READ",
    "WRITE",
    "CREATE",
    "DELETE",
    "ALTER",
    "DESCRIBE",
    "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
    "IDEMPOTENT_WRITE",
    "TWO_PHASE_COMMIT",
]
PrincipalName = Annotated[str, Field(min_length=1, max_length=300, pattern=_PLAIN, description="User:alice, or alice.")]
ResourceName = Annotated[str, Field(min_length=1, max_length=300, pattern=_PLAIN)]
Host = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z.:*%_-]+$")]


class AclScope(BaseModel):
    """Whom an ACL speaks of, about which resources."""

    principal: PrincipalName
    permission: Literal["ALLOW", "DENY"] = "ALLOW"
    resource_type: Type
    resource_name: ResourceName
    pattern_type: Literal["LITERAL", "PREFIXED"] = "LITERAL"
    host: Host = "*"


class AclRequest(AclScope):
    operations: list[Operation] = Field(min_length=1, max_length=20)

    def values(self) -> list[AclBinding]:
        return [
            AclBinding(
                self.principal,
                self.permission,
                operation,
                self.resource_type,
                self.resource_name,
                self.pattern_type,
                self.host,
            )
            for operation in dict.fromkeys(self.operations)
        ]


class AclBody(AclScope):
    operation: Operation

    def value(self) -> AclBinding:
        return AclRequest(**self.model_dump(exclude={"operation"}), operations=[self.operation]).values()[0]


class AclList(BaseModel):
    acls: list[AclBody] = Field(min_length=1, max_length=MAX_ACLS)


@router.get("")
async def list_acls(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    rows: Rows,
    principal: Annotated[str | None, Query(min_length=1, max_length=300)] = None,
    resource_type: Type | None = None,
    resource_name: Annotated[
        str | None, Query(min_length=1, max_length=300, description="Only those that apply to what is called so.")
    ] = None,
) -> RowPage[AclBinding]:
    return await console.acls.list(
        caller, cluster, rows, principal=principal, resource_type=resource_type, resource_name=resource_name
    )


@router.get("/authorizer")
async def show_authorizer(console: TheConsole, caller: TheCaller, cluster: ClusterName) -> Authorizer:
    """Whether ACLs count at all, and who may do everything whatever they say."""
    return await console.acls.authorizer(caller, cluster)


@router.get("/decision")
async def check_acls(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    principal: Annotated[str, Query(min_length=1, max_length=300)],
    operation: Operation,
    resource_type: Type,
    resource_name: Annotated[str, Query(min_length=1, max_length=300)],
    host: Annotated[str, Query(min_length=1, max_length=64)] = "127.0.0.1",
) -> AccessDecision:
    """Whether a principal may do something, and by which rule."""
    return await console.acls.check(caller, cluster, principal, operation, resource_type, resource_name, host)


@router.post("", status_code=201)
async def add_acls(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, body: AclRequest
) -> tuple[ItemResult, ...]:
    """Adds an ACL for each operation."""
    return await console.acls.add(caller, cluster, body.principal, body.values())


@router.post("/removal-preview")
async def preview_removal_of_acls(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, body: AclList
) -> tuple[RemovalEffect, ...]:
    """What would change if these were removed; nothing is."""
    return await console.acls.preview_removal(caller, cluster, [each.value() for each in body.acls])


@router.post("/removal")
async def remove_acls(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, body: AclList
) -> tuple[ItemResult, ...]:
    """Removes exactly these."""
    return await console.acls.remove(caller, cluster, [each.value() for each in body.acls])
