"""/api/clusters/{cluster}/transactions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from penstock.admin import TransactionDescription
from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import MAX_TIME_MS, ClusterName
from penstock.console.operations.transactions import TransactionList

router = APIRouter(prefix="/clusters/{cluster}/transactions", tags=["transactions"])

# An id may have any character in it, slashes too: it comes as a parameter, not in the path.
TransactionalId = Annotated[str, Query(min_length=1, max_length=1000)]


class Abortion(BaseModel):
    id: str = Field(min_length=1, max_length=1000)
    confirm: str = Field(max_length=1000, description="The id once more.")


@router.get("")
async def list_transactions(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    open: bool = False,
    older_than_ms: Annotated[int | None, Query(ge=0, le=MAX_TIME_MS)] = None,
) -> TransactionList:
    return await console.transactions.list(caller, cluster, open, older_than_ms)


@router.get("/description")
async def describe_transaction(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, id: TransactionalId
) -> TransactionDescription:
    return await console.transactions.describe(caller, cluster, id)


@router.post("/abort")
async def abort_transaction(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, body: Abortion
) -> TransactionDescription:
    """Aborts what is open under an id; its producer is fenced."""
    return await console.transactions.abort(caller, cluster, body.id, body.confirm)
