"""Requests in front of which quotas stand: what is counted, who is throttled, and what the answer becomes."""

from __future__ import annotations

import asyncio
import struct

import pytest

from penstock.broker.requests.client_limits import ClientLimits
from penstock.broker.requests.quota_enforcement import QuotaEnforcement
from penstock.clock import ManualClock
from penstock.config.quotas import QuotaSettings
from penstock.net.caller import Caller
from penstock.net.connection import Parts, Unanswered
from penstock.parts import read_parts
from penstock.protocol import apis, fetch, produce
from penstock.protocol.fetch import FetchResult
from penstock.protocol.messages.heartbeat import HeartbeatResponse
from penstock.protocol.produce import ProduceResult
from penstock.security.principal import Principal
from penstock.security.quota_entity import DEFAULT_NAME, QuotaEntity
from penstock.security.quota_keys import QuotaKey
from support import callers
from support.wire import request_frame

PRODUCE, FETCH, HEARTBEAT = (apis.PRODUCE, 8), (apis.FETCH, 11), (apis.HEARTBEAT, 4)
PRODUCED = produce.encode_response(8, 0, [ProduceResult("t", 0, 0, 0, -1, 0)])
BURST_S = 10


def frame_of(api: apis.Api, version: int, size: int = 0, client_id: str = "c") -> memoryview:
    """A request of so many bytes, its own size included; the body matters to nothing here."""
    head = request_frame(api, version, 0, b"", client_id)
    return memoryview(request_frame(api, version, 0, bytes(max(0, size - len(head))), client_id))[4:]


def fetched(size: int) -> Parts:
    """The answer to a fetch, of so many bytes."""
    rest = size - len(read_parts(fetch.encode_response(11, 0, [FetchResult("t", None, 0, parts=(b"x",), size=1)])))
    return fetch.encode_response(11, 0, [FetchResult("t", None, 0, parts=(bytes(rest + 1),), size=rest + 1)])


def throttle_time(parts: Parts) -> int:
    """Of a response that begins with it."""
    (found,) = struct.unpack_from(">i", read_parts(parts), 8)
    assert isinstance(found, int)
    return found


class Enforced:
    """Quotas in front of a handler that gives the answer that it was told to give."""

    def __init__(self, quotas: dict[QuotaEntity, dict[QuotaKey, float]], **settings: int) -> None:
        self.clock = ManualClock()
        self.limits = ClientLimits(QuotaSettings(**settings), self.clock.monotonic_ms)
        self.limits.follow(quotas)
        self.answer: Parts = []
        self.waits_for_followers = False
        self.caller = callers.client()
        self._enforcement = QuotaEnforcement(self._handle, self.limits, lambda caller: caller.is_inter_broker)

    async def _handle(self, frame: memoryview, caller: Caller) -> Parts | Unanswered:
        await asyncio.sleep(0)
        if self.waits_for_followers:
            return Unanswered(asyncio.create_task(self._response()))
        return list(self.answer)

    async def _response(self) -> Parts:
        await asyncio.sleep(0)
        return list(self.answer)

    async def handle(self, frame: memoryview, caller: Caller | None = None) -> Parts | Unanswered:
        return await self._enforcement.handle(frame, caller or self.caller)

    async def ask(self, frame: memoryview, caller: Caller | None = None) -> tuple[Parts, int]:
        """The answer, and for how long the connection is muted after it."""
        caller = caller or self.caller
        caller.throttle_ms = 0
        parts = await self.handle(frame, caller)
        assert not isinstance(parts, Unanswered)
        return parts, caller.throttle_ms


def quota(key: QuotaKey, limit: float, entity: QuotaEntity | None = None) -> Enforced:
    return Enforced({entity or QuotaEntity(client_id="c"): {key: limit}})


async def test_a_producer_with_a_quota_is_answered_when_followers_have_its_batch_and_throttled_then() -> None:
    enforced = quota(QuotaKey.PRODUCER_BYTE_RATE, 1000)
    enforced.answer, enforced.waits_for_followers = [PRODUCED], True
    assert await enforced.ask(frame_of(*PRODUCE, size=BURST_S * 1000)) == ([PRODUCED], 0)
    assert (await enforced.ask(frame_of(*PRODUCE, size=1000)))[1] > 0


@pytest.mark.parametrize("key", [QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE])
async def test_only_a_producer_with_a_quota_waits_for_its_answer_before_its_next_request(key: QuotaKey) -> None:
    enforced = quota(key, 1000)
    enforced.answer, enforced.waits_for_followers = [PRODUCED], True
    assert await enforced.handle(frame_of(*PRODUCE, client_id="c")) == [PRODUCED]
    outcome = await enforced.handle(frame_of(*PRODUCE, client_id="other"))
    assert isinstance(outcome, Unanswered)
    assert await outcome.response == [PRODUCED]
    enforced.limits.follow({QuotaEntity(client_id=DEFAULT_NAME): {key: 1000}})
    assert await enforced.handle(frame_of(*PRODUCE, client_id="other")) == [PRODUCED]


async def test_a_producer_is_throttled_by_the_size_of_its_requests() -> None:
    enforced = quota(QuotaKey.PRODUCER_BYTE_RATE, 1000)
    enforced.answer = [PRODUCED]
    assert await enforced.ask(frame_of(*PRODUCE, size=BURST_S * 1000)) == ([PRODUCED], 0)
    parts, muted_ms = await enforced.ask(frame_of(*PRODUCE, size=2000))
    assert muted_ms == 2000
    assert parts == [produce.encode_response(8, 0, [ProduceResult("t", 0, 0, 0, -1, 0)], throttle_ms=2000)]
    counts = enforced.limits.counts[QuotaKey.PRODUCER_BYTE_RATE]
    assert (counts.throttled, counts.seconds) == (1, 2.0)


async def test_a_producer_that_wants_no_answer_is_muted_all_the_same() -> None:
    enforced = quota(QuotaKey.PRODUCER_BYTE_RATE, 1000)
    assert await enforced.ask(frame_of(*PRODUCE, size=11_000)) == ([], 1000)


async def test_a_fetch_above_the_quota_is_answered_empty_and_not_counted() -> None:
    enforced = quota(QuotaKey.CONSUMER_BYTE_RATE, 1000)
    enforced.answer = first = fetched(9000)
    assert await enforced.ask(frame_of(*FETCH)) == (first, 0)
    enforced.answer = fetched(3000)
    for _ in range(3):
        # The same time each: what was not sent was not counted.
        parts, muted_ms = await enforced.ask(frame_of(*FETCH))
        assert muted_ms == 2000
        assert parts == fetch.encode_response(11, 0, (), throttle_ms=2000)
    enforced.clock.advance(11_000)
    assert await enforced.ask(frame_of(*FETCH)) == (enforced.answer, 0)


async def test_a_fetch_is_bounded_by_the_quota_of_a_whole_window() -> None:
    enforced = quota(QuotaKey.CONSUMER_BYTE_RATE, 1000)
    await enforced.ask(frame_of(*FETCH))
    assert enforced.caller.max_fetch_bytes == BURST_S * 1000
    other = callers.client()
    await enforced.ask(frame_of(*FETCH, client_id="other"), other)
    assert other.max_fetch_bytes == 2**31 - 1


async def test_a_batch_larger_than_the_quota_of_a_window_is_sent_when_nothing_else_was() -> None:
    enforced = quota(QuotaKey.CONSUMER_BYTE_RATE, 1000)
    enforced.answer = fetched(15_000)
    parts, muted_ms = await enforced.ask(frame_of(*FETCH))
    assert (muted_ms, throttle_time(parts)) == (5000, 5000)
    assert len(read_parts(parts)) == 15_000
    parts, muted_ms = await enforced.ask(frame_of(*FETCH))
    assert len(read_parts(parts)) < 100
    assert muted_ms > 5000


async def test_the_time_that_requests_take_counts_for_every_api() -> None:
    enforced = quota(QuotaKey.REQUEST_PERCENTAGE, 1e-6)
    enforced.answer = [apis.encode_response(*HEARTBEAT, 0, HeartbeatResponse())]
    parts, muted_ms = await enforced.ask(frame_of(*HEARTBEAT))
    # No longer than one sample: the client does not lose its place in a group.
    assert muted_ms == 1000
    assert parts == [apis.encode_response(*HEARTBEAT, 0, HeartbeatResponse(throttle_time_ms=1000))]


async def test_a_throttled_client_is_not_kept_longer_than_the_settings_allow() -> None:
    enforced = Enforced({QuotaEntity(client_id="c"): {QuotaKey.PRODUCER_BYTE_RATE: 1.0}}, max_throttle_ms=5000)
    assert (await enforced.ask(frame_of(*PRODUCE, size=100_000)))[1] == 5000


async def test_partition_changes_throttle_too() -> None:
    enforced = quota(QuotaKey.CONTROLLER_MUTATION_RATE, 1)

    async def handle(frame: memoryview, caller: Caller) -> Parts:
        enforced.limits.partition_allowance(caller, is_strict=False).take(14)
        return [apis.encode_response(*HEARTBEAT, 0, HeartbeatResponse())]

    caller = callers.client("c")
    parts = await QuotaEnforcement(handle, enforced.limits, lambda caller: False).handle(frame_of(*HEARTBEAT), caller)
    assert caller.throttle_ms == 3000
    assert parts == [apis.encode_response(*HEARTBEAT, 0, HeartbeatResponse(throttle_time_ms=3000))]


async def test_brokers_are_exempt() -> None:
    enforced = quota(QuotaKey.PRODUCER_BYTE_RATE, 1, QuotaEntity(client_id=DEFAULT_NAME))
    assert await enforced.ask(frame_of(*PRODUCE, size=100_000), callers.broker()) == ([], 0)


async def test_users_are_limited_whatever_client_id_they_take() -> None:
    enforced = quota(QuotaKey.PRODUCER_BYTE_RATE, 1000, QuotaEntity(user="alice"))
    alice, bob = callers.client(), callers.client()
    alice.principal, bob.principal = Principal.user("alice"), Principal.user("bob")
    assert (await enforced.ask(frame_of(*PRODUCE, size=10_000, client_id="one"), alice))[1] == 0
    assert (await enforced.ask(frame_of(*PRODUCE, size=1_000, client_id="two"), alice))[1] == 1000
    assert (await enforced.ask(frame_of(*PRODUCE, size=100_000, client_id="two"), bob))[1] == 0


async def test_a_failure_of_the_handler_stays_a_failure() -> None:
    enforced = quota(QuotaKey.REQUEST_PERCENTAGE, 1)

    async def fail(frame: memoryview, caller: Caller) -> Parts:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await QuotaEnforcement(fail, enforced.limits, lambda caller: False).handle(
            frame_of(*HEARTBEAT), callers.client()
        )


async def test_a_request_that_is_cancelled_is_cancelled_in_the_handler() -> None:
    enforced = quota(QuotaKey.REQUEST_PERCENTAGE, 1)
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(frame: memoryview, caller: Caller) -> Parts:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return []

    enforcement = QuotaEnforcement(wait, enforced.limits, lambda caller: False)
    task = asyncio.ensure_future(enforcement.handle(frame_of(*HEARTBEAT), callers.client()))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()
