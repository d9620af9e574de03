"""/api/clusters/{cluster}/brokers, /moves and /databases."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from penstock.admin import DatabaseGroupDescription
from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.groups import PartitionName
from penstock.console.api.parameters import ClusterName
from penstock.console.api.topics import Confirmation
from penstock.console.operations.brokers import BrokerDetail, MoveRow, MoveThrottle
from penstock.console.operations.paging import ItemResult
from penstock.console.polling.snapshot import BrokerRow

router = APIRouter(prefix="/clusters/{cluster}", tags=["brokers"])

BrokerId = Annotated[int, Path(ge=0, le=2**31 - 1)]
Id = Annotated[int, Field(ge=0, le=2**31 - 1)]
DatabaseName = Annotated[str, Path(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._-]+$")]
Address = Annotated[str, Field(min_length=1, max_length=1000)]
Servers = Annotated[list[Address], Field(min_length=1, max_length=50)]


class Draining(BaseModel):
    draining: bool


class Move(PartitionName):
    replicas: list[Id] = Field(min_length=1, max_length=100)


class Moves(BaseModel):
    moves: list[Move] = Field(min_length=1, max_length=1000)


class Throttle(BaseModel):
    bytes_per_s: int | None = Field(ge=0, le=2**53, description="Null: as the configuration of each broker says.")


class Partitions(BaseModel):
    partitions: list[PartitionName] = Field(min_length=1, max_length=1000)


class NewDatabase(BaseModel):
    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._-]+$")
    servers: Servers


class ServerList(BaseModel):
    servers: Servers


class DatabaseTest(BaseModel):
    address: Address


class Promotion(BaseModel):
    server: str = Field(min_length=1, max_length=300)


@router.get("/brokers")
async def list_brokers(console: TheConsole, caller: TheCaller, cluster: ClusterName) -> tuple[BrokerRow, ...]:
    return await console.brokers.list(caller, cluster)


@router.get("/brokers/{broker}")
async def describe_broker(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, broker: BrokerId
) -> BrokerDetail:
    return await console.brokers.describe(caller, cluster, broker)


@router.put("/brokers/{broker}/draining", status_code=204)
async def drain_broker(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, broker: BrokerId, body: Draining
) -> None:
    """Has everything moved off a broker, or lets it have partitions again."""
    if body.draining:
        await console.brokers.drain(caller, cluster, broker)
    else:
        await console.brokers.undrain(caller, cluster, broker)


@router.get("/moves")
async def list_moves(console: TheConsole, caller: TheCaller, cluster: ClusterName) -> tuple[MoveRow, ...]:
    """Partitions that are being moved."""
    return await console.brokers.moves(caller, cluster)


@router.get("/moves/throttle")
async def move_throttle(console: TheConsole, caller: TheCaller, cluster: ClusterName) -> MoveThrottle:
    """Bytes a second that each broker copies for new replicas at most."""
    return await console.brokers.throttle(caller, cluster)


@router.put("/moves/throttle")
async def set_move_throttle(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, body: Throttle
) -> MoveThrottle:
    return await console.brokers.set_throttle(caller, cluster, body.bytes_per_s)


@router.post("/moves")
async def start_moves(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, body: Moves
) -> tuple[ItemResult, ...]:
    return await console.brokers.move(caller, cluster, {each.value(): each.replicas for each in body.moves})


@router.post("/moves/cancellation")
async def cancel_moves(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, body: Partitions
) -> tuple[ItemResult, ...]:
    return await console.brokers.cancel_moves(caller, cluster, [each.value() for each in body.partitions])


@router.get("/databases", tags=["databases"])
async def list_databases(
    console: TheConsole, caller: TheCaller, cluster: ClusterName
) -> tuple[DatabaseGroupDescription, ...]:
    return await console.databases.list(caller, cluster)


@router.post("/databases", status_code=204, tags=["databases"])
async def add_database(console: TheConsole, caller: TheCaller, cluster: ClusterName, body: NewDatabase) -> None:
    """Adds a group of servers, which are addresses with passwords; the first is the primary."""
    await console.databases.add(caller, cluster, body.name, body.servers)


@router.post("/databases/test", tags=["databases"])
async def test_database(console: TheConsole, caller: TheCaller, cluster: ClusterName, body: DatabaseTest) -> ItemResult:
    """Whether the console reaches a database."""
    return await console.databases.test(caller, cluster, body.address)


@router.put("/databases/{name}/servers", status_code=204, tags=["databases"])
async def set_database_servers(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, name: DatabaseName, body: ServerList
) -> None:
    await console.databases.set_servers(caller, cluster, name, body.servers)


@router.put("/databases/{name}/primary", status_code=204, tags=["databases"])
async def promote_database(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, name: DatabaseName, body: Promotion
) -> None:
    await console.databases.promote(caller, cluster, name, body.server)


@router.put("/databases/{name}/draining", status_code=204, tags=["databases"])
async def drain_database(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, name: DatabaseName, body: Draining
) -> None:
    await console.databases.drain(caller, cluster, name, body.draining)


@router.post("/databases/{name}/removal", status_code=204, tags=["databases"])
async def remove_database(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, name: DatabaseName, body: Confirmation
) -> None:
    await console.databases.remove(caller, cluster, name, body.confirm)
