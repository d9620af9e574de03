"""Requests of clients within their quotas: counts what each uses, and throttles who uses too much.

It stands in front of the dispatcher while there are quotas, and is not there otherwise. Brokers are exempt: nothing
stands in front of the dispatcher for the inter-broker listener.

As in Kafka (KIP-219), a client that is above a quota gets its answer at once, with the time for which it is throttled,
and its connection takes no further request until then (`net/connection.py`). The answer to a fetch is empty then, and
what it would have had is not counted: the client asks for it again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from typing import Any

from penstock.broker.requests.client_limits import ClientLimits
from penstock.net.caller import Caller
from penstock.net.connection import Handler, Parts, Unanswered
from penstock.parts import size_of
from penstock.protocol import apis, fetch
from penstock.protocol.header import RequestHeader
from penstock.protocol.throttle_time import with_throttle_time
from penstock.security.client_quotas import FoundQuota
from penstock.security.quota_keys import QuotaKey
from penstock.security.rates import BURST_S

_PRODUCE_KEY, _FETCH_KEY = apis.PRODUCE.key, apis.FETCH.key
_SIZE_BYTES = 4
_NO_BOUND = 2**31 - 1


class QuotaEnforcement:
    """A handler of requests in front of another one."""

    def __init__(self, handler: Handler, limits: ClientLimits, is_broker: Callable[[Caller], bool]) -> None:
        self._handler = handler
        self._limits = limits
        self._is_broker = is_broker

    async def handle(self, frame: memoryview, caller: Caller) -> Parts | Unanswered:
        """The parts of the response to one request frame; `caller.throttle_ms` says for how long it is the last."""
        header = apis.decode_header(frame)
        caller.client_id = header.client_id
        if self._is_broker(caller):
            return await self._handler(frame, caller)
        size = len(frame) + _SIZE_BYTES
        limits = self._limits
        if header.api_key == _PRODUCE_KEY and not limits.restrains_producing(caller):
            # Its answer says nothing of quotas, so the next request need not wait for it.
            return await self._handler(frame, caller)
        consumer_quota = limits.find(QuotaKey.CONSUMER_BYTE_RATE, caller) if header.api_key == _FETCH_KEY else None
        caller.max_fetch_bytes = _NO_BOUND
        if consumer_quota is not None:
            caller.max_fetch_bytes = min(_NO_BOUND, max(1, int(consumer_quota.limit * BURST_S)))
        caller.mutation_throttle_ms = 0
        if limits.measures_time:
            timed = _Timed(self._answered(frame, caller))
            parts = await timed
            request_ms = limits.add_time(caller, timed.seconds)
        else:
            parts = await self._answered(frame, caller)
            request_ms = 0.0
        times_ms = {
            QuotaKey.REQUEST_PERCENTAGE: request_ms,
            QuotaKey.CONTROLLER_MUTATION_RATE: caller.mutation_throttle_ms,
        }
        if header.api_key == _PRODUCE_KEY:
            times_ms[QuotaKey.PRODUCER_BYTE_RATE] = limits.add_produced(caller, size)
        elif consumer_quota is not None:
            return self._fetched(header, caller, consumer_quota, parts, request_ms)
        throttle_ms = limits.throttle(caller, times_ms)
        if not throttle_ms:
            return parts
        if header.api_key == _FETCH_KEY:
            return _empty_fetch(header, throttle_ms)
        return with_throttle_time(header.api_key, header.api_version, parts, throttle_ms)

    async def _answered(self, frame: memoryview, caller: Caller) -> Parts:
        """For how long a caller is throttled is in its answer, so the answer is waited for before the next request."""
        outcome = await self._handler(frame, caller)
        return await outcome.response if isinstance(outcome, Unanswered) else outcome

    def _fetched(
        self, header: RequestHeader, caller: Caller, quota: FoundQuota, parts: Parts, request_ms: float
    ) -> Parts:
        size = size_of(parts)
        consumer_ms, is_first = self._limits.add_consumed(quota, size)
        times_ms = {QuotaKey.REQUEST_PERCENTAGE: request_ms, QuotaKey.CONSUMER_BYTE_RATE: consumer_ms}
        throttle_ms = self._limits.throttle(caller, times_ms)
        if not throttle_ms:
            return parts
        if is_first and consumer_ms:
            return with_throttle_time(header.api_key, header.api_version, parts, throttle_ms)
        self._limits.take_back_consumed(quota, size)
        return _empty_fetch(header, throttle_ms)


def _empty_fetch(header: RequestHeader, throttle_ms: int) -> Parts:
    return fetch.encode_response(header.api_version, header.correlation_id, (), throttle_ms=throttle_ms)


class _Timed:
    """Awaits something, and measures for how long it kept the event loop from others."""

    def __init__(self, work: Coroutine[Any, Any, Parts]) -> None:
        self._work = work
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, Parts]:
        work, step, value = self._work, self._work.send, None
        while True:
            started = perf_counter()
            try:
                waiting_for = step(value)
            except StopIteration as done:
                result: Parts = done.value
                return result
            finally:
                self.seconds += perf_counter() - started
            try:
                step, value = work.send, (yield waiting_for)
            except BaseException as error:
                step, value = work.throw, error
