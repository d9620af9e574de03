"""A cluster whose broker was stopped, or that is none: every operation ends with a clear error."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from conftest import BrokerFactory
from penstock.admin import (
    Cluster,
    ConfigResource,
    DeadLetterSelection,
    Earliest,
    NewTopic,
    TopicPartition,
    UnreachableError,
)
from penstock.sdk.errors import InvalidInputError

TIMEOUT_S = 2.0
AT = TopicPartition("orders", 0)
CALLS: dict[str, Callable[[Cluster], object]] = {
    "check": lambda cluster: cluster.check(),
    "id": lambda cluster: cluster.id(),
    "brokers": lambda cluster: cluster.brokers.list(),
    "topics": lambda cluster: cluster.topics.list(),
    "create": lambda cluster: cluster.topics.create([NewTopic(name="orders")]).all(),
    "configs": lambda cluster: cluster.configs.describe([ConfigResource.topic("orders")]).all(),
    "offsets": lambda cluster: cluster.offsets.latest([AT]).all(),
    "groups": lambda cluster: cluster.groups.list(),
    "lags": lambda cluster: cluster.groups.lags(),
    "reset": lambda cluster: cluster.resets.plan("orders", Earliest()),
    "timers": lambda cluster: cluster.timers.list("orders"),
    "letters": lambda cluster: cluster.dead_letters.purge("orders", DeadLetterSelection()),
    "reassignments": lambda cluster: cluster.reassignments.list(),
    "retirement": lambda cluster: cluster.retirement.describe("orders"),
}


@pytest.fixture(scope="module")
def refused() -> str:
    """An address at which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        host, port = bound.getsockname()
    return f"{host}:{port}"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_nothing_listens(refused: str, call: Callable[[Cluster], object]) -> None:
    with pytest.raises(UnreachableError) as caught:
        call(Cluster(refused, timeout_s=TIMEOUT_S))
    assert caught.value.code in ("NETWORK_EXCEPTION", "REQUEST_TIMED_OUT")
    assert caught.value.message


def test_a_broker_that_stops_between_two_calls_is_noticed(new_broker: BrokerFactory) -> None:
    process = new_broker()
    cluster = Cluster(process.kafka, timeout_s=TIMEOUT_S)
    cluster.topics.create([NewTopic(name="orders")]).all()
    process.stop()
    with pytest.raises(UnreachableError, match=f"no broker answers at {process.kafka}"):
        cluster.topics.list()
    with pytest.raises(UnreachableError, match=rf"no broker answers \({process.kafka}: Connection refused\)"):
        cluster.check()
    error = cluster.offsets.latest([AT]).errors[AT]
    assert isinstance(error, UnreachableError) or error.code == "LEADER_NOT_AVAILABLE"


def test_something_that_takes_connections_and_is_no_broker_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        with pytest.raises(UnreachableError, match="no broker answers"):
            Cluster(f"{host}:{port}", timeout_s=TIMEOUT_S).check()


def test_an_event_loop_asks_in_threads(broker: object, cluster: Cluster, topic: str) -> None:
    async def both() -> tuple[object, object]:
        return await asyncio.gather(
            asyncio.to_thread(cluster.topics.create, [NewTopic(name=topic)]),
            asyncio.to_thread(cluster.brokers.list),
        )

    created, brokers = asyncio.run(both())
    assert created.all()[topic].name == topic  # type: ignore[attr-defined]
    assert brokers


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="bootstrap"):
        Cluster("nonsense")
