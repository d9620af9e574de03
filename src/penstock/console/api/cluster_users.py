"""/api/clusters/{cluster}/users: the users that may log in to the brokers of a cluster with a password."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from penstock.admin.users import DEFAULT_ITERATIONS
from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import ClusterName, Rows
from penstock.console.operations.cluster_users import ClusterUser
from penstock.console.operations.paging import RowPage

router = APIRouter(prefix="/clusters/{cluster}/users", tags=["cluster users"])

# A name may have any character in it, slashes too: it comes in the body, not in the path.
UserName = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
Password = Annotated[str, Field(min_length=1, max_length=512)]
Iterations = Annotated[int, Field(ge=4096, le=16_384, description="What guessing the password costs.")]


class NewClusterUser(BaseModel):
    name: UserName
    password: Password
    mechanisms: list[Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]] = Field(
        ["SCRAM-SHA-256", "SCRAM-SHA-512"], min_length=1, max_length=2
    )
    iterations: Iterations = DEFAULT_ITERATIONS


class ClusterUserPassword(BaseModel):
    name: UserName
    password: Password
    iterations: Iterations = DEFAULT_ITERATIONS


class ClusterUserRemoval(BaseModel):
    name: UserName
    confirm: str = Field(max_length=255, description="The name once more.")


@router.get("")
async def list_cluster_users(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, rows: Rows
) -> RowPage[ClusterUser]:
    """Users that are in the cluster's metadata; those of `security.users_file` are known to their broker alone."""
    return await console.cluster_users.list(caller, cluster, rows)


@router.post("", status_code=201)
async def add_cluster_user(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, body: NewClusterUser
) -> ClusterUser:
    return await console.cluster_users.add(
        caller, cluster, body.name, body.password, tuple(body.mechanisms), body.iterations
    )


@router.put("/password", status_code=204)
async def set_cluster_user_password(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, body: ClusterUserPassword
) -> None:
    """Connections that exist go on until they have to log in again."""
    await console.cluster_users.set_password(caller, cluster, body.name, body.password, body.iterations)


@router.post("/removal", status_code=204)
async def remove_cluster_user(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, body: ClusterUserRemoval
) -> None:
    """Its ACLs and quotas stay: a new user of that name would have them."""
    await console.cluster_users.remove(caller, cluster, body.name, body.confirm)
