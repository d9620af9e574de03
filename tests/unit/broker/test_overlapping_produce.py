"""Produce requests of one connection that wait for followers, a disk or a database: only their waiting overlaps."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from penstock.broker.handlers.produce import ProduceHandler
from penstock.broker.leader_endpoints import LeaderEndpoints
from penstock.broker.metrics.registry import SECONDS, RequestMetrics
from penstock.broker.requests.dispatch import Dispatcher
from penstock.broker.requests.sliced_work import Slices
from penstock.broker.retired_redirection import RetiredRedirection
from penstock.broker.transaction_verification import TransactionVerification
from penstock.clock import ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.errors import Code, StorageError
from penstock.net.buffers import Allowance
from penstock.net.connection import Connection
from penstock.net.round_robin import RoundRobin
from penstock.net.transport import SocketTransport
from penstock.protocol import apis
from penstock.protocol.messages.api_versions import ApiVersionsRequest
from penstock.replication.inspection import Inspection
from penstock.replication.partition import ALL_IN_SYNC
from support import callers
from support.followed import LONG_MS, OTHER, Leader
from support.logs import AT, NOW_MS, batch
from support.suspending import UnsafeEngine, UnsafeLog
from support.waiting import PATIENCE_S
from support.wire import FETCH_BY_NAME, PRODUCE, body_of, fetch_request, produce_request, request_frame
from unit.protocol.kio_oracle import kio_class, kio_read

_AT_ONCE = 3
VERSIONS = 3


class _NoHandlers:
    """For the APIs that nobody asks for here."""

    def keys(self) -> list[int]:
        return []

    def find(self, api: apis.Api) -> None:
        return None


class Server:
    """What answers requests to the leader."""

    def __init__(self, leader: Leader, in_flight_requests: int = 100) -> None:
        limits = Limits(in_flight_requests=in_flight_requests)
        # It is asked about transactions only, and nothing here is transactional.
        verification = TransactionVerification(leader.replicas, cast(Any, None))
        self._inspection = Inspection(limits)
        redirection = RetiredRedirection(leader.replicas, verification, self._inspection, lambda: leader.image)
        self.metrics = RequestMetrics({apis.PRODUCE.key: "Produce"})
        produce = ProduceHandler(
            leader.replicas,
            verification,
            redirection,
            self._inspection,
            LeaderEndpoints(lambda: leader.image),
            lambda: None,
            Slices(),
        )
        self.dispatcher = Dispatcher(produce, leader.handler, _NoHandlers(), self.metrics, limits, Slices())
        self._clients: list[Client] = []

    def client(self) -> Client:
        self._clients.append(Client(self.dispatcher))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._inspection.close()


class Client:
    """One connection."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._loop = asyncio.get_running_loop()
        ours, self.socket = socket.socketpair()
        for end in (ours, self.socket):
            end.setblocking(False)
        self.connection = Connection(
            self._loop,
            SocketTransport(ours),
            callers.client(),
            dispatcher.handle,
            Allowance(1 << 20),
            1 << 20,
            _AT_ONCE,
            RoundRobin(self._loop),
            self._loop.time,
            on_close=lambda closed: None,
        )

    def close(self) -> None:
        self.connection.close()
        self.socket.close()

    async def produce(
        self,
        number: int,
        producer: int = -1,
        sequence: int = 0,
        acks: int = ALL_IN_SYNC,
        *,
        partition: int = 0,
        timeout_ms: int = LONG_MS,
        is_damaged: bool = False,
    ) -> None:
        made = bytearray(batch(b"value", producer=producer, sequence=sequence))
        if is_damaged:
            made[-1] ^= 1
        request = produce_request(AT.topic, bytes(made), acks=acks, partition=partition)
        body = body_of(apis.PRODUCE, PRODUCE, {**request, "timeout_ms": timeout_ms})
        await self._send(request_frame(apis.PRODUCE, PRODUCE, number, body))

    async def ask_versions(self, number: int) -> None:
        hello = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        body = body_of(apis.API_VERSIONS, VERSIONS, hello)
        await self._send(request_frame(apis.API_VERSIONS, VERSIONS, number, body))

    async def fetch(self, number: int, max_wait_ms: int = 0) -> None:
        body = body_of(apis.FETCH, FETCH_BY_NAME, fetch_request([(AT.topic, 0, 0)], max_wait_ms=max_wait_ms))
        await self._send(request_frame(apis.FETCH, FETCH_BY_NAME, number, body))

    async def _send(self, frame: bytes) -> None:
        await self._loop.sock_sendall(self.socket, frame)
        await turns()

    async def produced(self, number: int) -> tuple[int, int]:
        """Error code and base offset in the next answer, which must be this one's."""
        answer = await self._answer(apis.PRODUCE, PRODUCE, number)
        ((found,),) = (response["partition_responses"] for response in answer["responses"])
        return found["error_code"], found["base_offset"]

    async def fetched(self, number: int) -> tuple[int, int]:
        """High watermark, and whether there are records, in the next answer, which must be this one's."""
        answer = await self._answer(apis.FETCH, FETCH_BY_NAME, number)
        ((found,),) = (response["partitions"] for response in answer["responses"])
        return found["high_watermark"], bool(found["records"])

    async def told_versions(self, number: int) -> bool:
        """Whether there are any in the next answer, which must be this one's."""
        return bool((await self._answer(apis.API_VERSIONS, VERSIONS, number))["api_keys"])

    async def _answer(self, api: apis.Api, version: int, number: int) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            frame = await self._exactly(int.from_bytes(await self._exactly(4)))
        assert int.from_bytes(frame[:4]) == number
        return kio_read(kio_class(api, version, "Response"), frame[4 if api is apis.API_VERSIONS else 5 :])

    async def _exactly(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            part = await self._loop.sock_recv(self.socket, count - len(received))
            assert part, "the connection was closed"
            received += part
        return received

    @property
    def is_answered(self) -> bool:
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def limit() -> int:
    """Requests that the server has in progress."""
    return 100


@pytest.fixture
async def server(leader: Leader, limit: int) -> AsyncIterator[Server]:
    await leader.fetch((0, 0))
    server = Server(leader, limit)
    yield server
    server.close()


@pytest.fixture
async def client(server: Server) -> Client:
    return server.client()


def end_of(leader: Leader) -> tuple[int, int]:
    return leader[0].log.end_offset, leader[0].high_watermark


async def test_batches_are_appended_in_order_while_those_before_wait_for_followers(
    leader: Leader, client: Client
) -> None:
    for number in range(_AT_ONCE):
        await client.produce(number, producer=7, sequence=number)
    assert end_of(leader) == (_AT_ONCE, 0)
    assert not client.is_answered
    await leader.fetch((0, 1))
    assert await client.produced(0) == (0, 0)
    assert not client.is_answered
    await leader.fetch((0, 3))
    assert [await client.produced(number) for number in (1, 2)] == [(0, 1), (0, 2)]


async def test_a_fetch_behind_a_batch_sees_it(leader: Leader, client: Client) -> None:
    await client.produce(0)
    await client.fetch(1)
    assert not client.is_answered
    await leader.fetch((0, 1))
    assert await client.produced(0) == (0, 0)
    assert await client.fetched(1) == (1, True)


async def test_all_that_wait_are_told_when_another_replica_leads(leader: Leader, client: Client) -> None:
    for number in range(2):
        await client.produce(number)
    leader[0].follow(OTHER, 5)
    for number in range(2):
        assert (await client.produced(number))[0] == Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    await client.produce(2)
    assert (await client.produced(2))[0] == Code.NOT_LEADER_OR_FOLLOWER


async def test_a_request_that_fails_is_answered_behind_the_one_that_waits(leader: Leader, client: Client) -> None:
    await client.produce(0, producer=7, sequence=0)
    await client.produce(1, producer=7, sequence=5)
    assert not client.is_answered
    await leader.fetch((0, 1))
    assert await client.produced(0) == (0, 0)
    assert (await client.produced(1))[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_answers_keep_the_order_of_requests_of_every_kind(leader: Leader, client: Client) -> None:
    await leader.fetch((1, 0))
    await client.produce(0, timeout_ms=100)
    await client.produce(1, partition=1)
    # The second is safe before the first gives up.
    await leader.fetch((1, 1))
    assert await client.produced(0) == (Code.REQUEST_TIMED_OUT, -1)
    assert await client.produced(1) == (0, 0)
    await client.produce(2)
    await client.produce(3, acks=0)
    await client.produce(4, is_damaged=True)
    await client.produce(5, acks=1, partition=1)
    await client.ask_versions(6)
    await client.fetch(7)
    await client.produce(8, acks=0)
    await client.produce(9)
    assert not client.is_answered
    await leader.fetch((0, 3))
    assert await client.produced(2) == (0, 1)
    assert await client.produced(4) == (Code.CORRUPT_MESSAGE, -1)
    assert await client.produced(5) == (0, 1)
    assert await client.told_versions(6)
    assert await client.fetched(7) == (3, True)
    await leader.fetch((0, 5))
    assert await client.produced(9) == (0, 4)


async def test_a_batch_that_is_sent_again_while_the_first_waits_is_not_appended_again(
    leader: Leader, client: Client
) -> None:
    for number in range(2):
        await client.produce(number, producer=7, sequence=0)
    assert end_of(leader) == (1, 0)
    await leader.fetch((0, 1))
    assert [await client.produced(number) for number in range(2)] == [(0, 0), (0, 0)]


@pytest.mark.parametrize("limit", [2])
async def test_a_request_that_waits_for_followers_is_in_progress_until_it_is_answered(
    leader: Leader, server: Server, client: Client
) -> None:
    for number in range(3):
        await client.produce(number)
    assert end_of(leader) == (2, 0)
    await leader.fetch((0, 2))
    await turns()
    assert end_of(leader) == (3, 2)
    await leader.fetch((0, 3))
    assert [await client.produced(number) for number in range(3)] == [(0, 0), (0, 1), (0, 2)]
    (counters,) = (row for name, row in server.metrics.rows() if name == "Produce")
    assert sum(counters[:SECONDS]) == 3


@pytest.mark.parametrize("limit", [1])
async def test_a_request_of_a_connection_that_is_closed_is_no_longer_in_progress(
    leader: Leader, server: Server, client: Client
) -> None:
    await client.produce(0)
    other = server.client()
    await other.produce(0)
    assert end_of(leader) == (1, 0)
    client.close()
    await turns()
    assert end_of(leader) == (2, 0)


@pytest.mark.parametrize("limit", [10])
async def test_connections_whose_requests_wait_for_followers_leave_turns_to_others(
    leader: Leader, server: Server
) -> None:
    waiting = [server.client() for _ in range(4)]
    for each in waiting:
        for number in range(_AT_ONCE):
            await each.produce(number)
    other = server.client()
    await other.ask_versions(0)
    assert other.is_answered
    assert not any(each.is_answered for each in waiting)
    while leader[0].high_watermark < len(waiting) * _AT_ONCE:
        await leader.fetch((0, leader[0].log.end_offset))
        await turns()
    for each in waiting:
        assert [(await each.produced(number))[0] for number in range(_AT_ONCE)] == [0] * _AT_ONCE


@pytest.fixture
async def unsafe() -> AsyncIterator[Leader]:
    """The leader of logs that are not safe at once."""
    made = Leader(engine=UnsafeEngine(LogSettings(), Limits(), ManualClock(NOW_MS)))
    await made.open()
    await made.fetch((0, 0))
    yield made
    await made.close()


@pytest.fixture
async def unsafe_server(unsafe: Leader) -> AsyncIterator[Server]:
    server = Server(unsafe)
    yield server
    server.close()


@pytest.fixture
async def unsafe_client(unsafe_server: Server) -> Client:
    return unsafe_server.client()


def log_of(leader: Leader) -> UnsafeLog:
    log = leader[0].log
    assert isinstance(log, UnsafeLog)
    return log


@pytest.mark.parametrize("acks", [1, ALL_IN_SYNC])
async def test_batches_are_written_in_order_while_those_before_are_not_safe(
    unsafe: Leader, unsafe_client: Client, acks: int
) -> None:
    for number in range(_AT_ONCE):
        await unsafe_client.produce(number, producer=7, sequence=number, acks=acks)
    assert unsafe[0].log.end_offset == _AT_ONCE
    await unsafe.fetch((0, _AT_ONCE))
    for number in range(_AT_ONCE):
        assert not unsafe_client.is_answered
        log_of(unsafe).settle()
        assert await unsafe_client.produced(number) == (0, number)


async def test_a_batch_that_never_is_safe_fails_alone_and_in_its_turn(unsafe: Leader, unsafe_client: Client) -> None:
    for number in range(2):
        await unsafe_client.produce(number, acks=1)
    log_of(unsafe).settle(StorageError("no more"))
    log_of(unsafe).settle()
    assert (await unsafe_client.produced(0))[0] == Code.KAFKA_STORAGE_ERROR
    assert await unsafe_client.produced(1) == (0, 1)


async def test_a_producer_that_wants_no_answer_waits_for_each_batch(unsafe: Leader, unsafe_client: Client) -> None:
    for number in range(2):
        await unsafe_client.produce(number, acks=0)
    assert unsafe[0].log.end_offset == 1
    log_of(unsafe).settle()
    await turns()
    assert unsafe[0].log.end_offset == 2
    log_of(unsafe).settle()
    await turns()
    assert not unsafe_client.is_answered


async def test_a_fetch_behind_a_batch_that_is_not_safe_waits_for_it(unsafe: Leader, unsafe_client: Client) -> None:
    await unsafe_client.produce(0, acks=1)
    await unsafe_client.fetch(1)
    assert not unsafe_client.is_answered
    await unsafe.fetch((0, 1))
    log_of(unsafe).settle()
    assert await unsafe_client.produced(0) == (0, 0)
    assert await unsafe_client.fetched(1) == (1, True)


@pytest.mark.parametrize("acks", [0, 1, ALL_IN_SYNC])
async def test_a_fetch_that_waits_is_answered_when_a_batch_is_safe_whose_client_went_away(
    unsafe: Leader, unsafe_server: Server, unsafe_client: Client, acks: int
) -> None:
    consumer = unsafe_server.client()
    await consumer.fetch(0, LONG_MS)
    await unsafe_client.produce(0, acks=acks)
    await unsafe.fetch((0, 1))
    unsafe_client.close()
    await turns()
    assert not consumer.is_answered
    log_of(unsafe).settle()
    assert await consumer.fetched(0) == (1, True)


async def test_a_follower_that_waits_is_answered_when_a_batch_is_safe_whose_client_went_away(
    unsafe: Leader, unsafe_client: Client
) -> None:
    follower = asyncio.create_task(unsafe.fetch((0, 0), wait_ms=LONG_MS))
    await turns()
    await unsafe_client.produce(0)
    unsafe_client.close()
    await turns()
    log_of(unsafe).settle()
    async with asyncio.timeout(PATIENCE_S):
        assert (await follower)[0].records


async def test_all_batches_of_a_client_that_went_away_become_visible_in_their_turn(
    unsafe: Leader, unsafe_client: Client
) -> None:
    for number in range(_AT_ONCE):
        await unsafe_client.produce(number)
    await unsafe.fetch((0, _AT_ONCE))
    unsafe_client.close()
    for number in range(_AT_ONCE):
        await turns()
        assert end_of(unsafe) == (_AT_ONCE, number)
        log_of(unsafe).settle()
    await turns()
    assert end_of(unsafe) == (_AT_ONCE, _AT_ONCE)


async def test_nothing_is_under_way_any_more_when_the_partitions_are_closed(
    unsafe: Leader, unsafe_client: Client
) -> None:
    await unsafe_client.produce(0)
    partition = unsafe[0]
    unsafe_client.close()
    assert partition.is_securing
    await unsafe.close()
    assert not partition.is_securing


async def test_nothing_of_a_topic_is_under_way_any_more_when_it_is_deleted(
    unsafe: Leader, unsafe_client: Client
) -> None:
    await unsafe_client.produce(0)
    partition = unsafe[0]
    unsafe_client.close()
    assert partition.is_securing
    unsafe.replicas.change(unsafe.image, replace(unsafe.image, version=2, topics={}, topic_names_by_id={}))
    await unsafe.replicas.applied()
    assert not partition.is_securing
