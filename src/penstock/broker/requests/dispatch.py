"""From a frame to the handler that answers it.

Errors are caught in two places, here and in the connection. A request that cannot be decoded closes its connection, as
in Kafka. An error inside a handler is logged and closes the connection too; the broker goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from time import perf_counter
from typing import Any, Protocol

from penstock.broker.features import FEATURES_EPOCH, FINALIZED, supported
from penstock.broker.handlers.fetch.handler import FetchHandler
from penstock.broker.handlers.produce import ProduceHandler
from penstock.broker.metrics.registry import RequestMetrics
from penstock.broker.requests.accepted_commit import AcceptedCommit
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.encoded_metadata import EncodedMetadata
from penstock.broker.requests.request_limits import RequestLimit
from penstock.broker.requests.response_frame import ResponseFrame
from penstock.broker.requests.sliced_work import Shares, Slices, Work
from penstock.config.broker import Limits
from penstock.errors import Code, ProtocolError
from penstock.net import eager
from penstock.net.caller import Caller
from penstock.net.connection import Parts, Unanswered
from penstock.parts import size_of
from penstock.protocol import apis, fetch, produce
from penstock.protocol.apis import API_VERSIONS, APIS, FETCH, METADATA, PRODUCE, Api
from penstock.protocol.header import RequestHeader
from penstock.protocol.messages.api_versions import ApiVersionsResponse

MessageHandler = Callable[[Any, RequestContext], Awaitable[Any]]

_PRODUCE_KEY, _FETCH_KEY = PRODUCE.key, FETCH.key
_AT_ONCE_BYTES = 16 * 1024
"""A request up to this size is decoded in one go and needs no share of the entries in flight."""
_LEAST_ENTRY_BYTES = 4
_SHORT_REQUEST = 1000
MAX_ENTRIES = {
    # These wait for other clients: what they hold meanwhile, others do without.
    apis.JOIN_GROUP.key: 1000,
    apis.SYNC_GROUP.key: 20_000,
    # These are decided in one piece, which cannot be done in slices.
    apis.LEAVE_GROUP.key: 20_000,
    apis.ADD_PARTITIONS_TO_TXN.key: 50_000,
    apis.TXN_OFFSET_COMMIT.key: 50_000,
}
"""Entries of a request, where less than `limits.request_entries` are allowed."""


class Handlers(Protocol):
    """Finds who answers an API."""

    def keys(self) -> Iterable[int]: ...

    def find(self, api: Api) -> MessageHandler | None: ...


class Dispatcher:
    """Decodes, calls, encodes, counts."""

    def __init__(
        self,
        produce_handler: ProduceHandler,
        fetch_handler: FetchHandler,
        handlers: Handlers,
        metrics: RequestMetrics,
        limits: Limits,
        slices: Slices,
    ) -> None:
        self._produce = produce_handler.produce
        self._fetch = fetch_handler.fetch
        self._handlers = handlers
        self._metrics = metrics
        self._max_other_bytes = limits.other_request_bytes
        self._max_entries = limits.request_entries
        self._max_answer_entries = limits.answer_entries
        self._request_limit = RequestLimit(limits.in_flight_requests)
        self._slices = slices
        self._entries = Shares(limits.in_flight_entries)
        self._long_answers = RequestLimit(limits.long_answers)
        self._encoded_metadata = EncodedMetadata()
        self.advertised = apis.advertise([PRODUCE.key, FETCH.key, API_VERSIONS.key, *handlers.keys()])

    async def handle(self, frame: memoryview, caller: Caller) -> Parts | Unanswered:
        """The parts of the response to one request frame, or the wait on which they depend."""
        started = perf_counter()
        header = apis.decode_header(frame)
        key, version = header.api_key, header.api_version
        caller.client_id = header.client_id
        caller.is_producing = key == _PRODUCE_KEY
        if key == _PRODUCE_KEY and PRODUCE.min_version <= version <= PRODUCE.max_version:
            produced = produce.decode_request(version, frame, header.body_start, self._max_entries)
            caller.has_produced = True
            limit = self._request_limit
            if not limit.take_now():
                await limit.wait()
            is_handed_on = False
            try:
                answer = await self._produce(version, header.correlation_id, produced, caller)
                if not isinstance(answer, ResponseFrame):
                    work = self._acknowledge(answer, started, len(frame))
                    is_handed_on = True
                    if not limit.is_plentiful:
                        # Its connection begins no other request meanwhile: the turns that are left are for others.
                        return await work
                    outcome = eager.start(asyncio.get_running_loop(), work)
                    return Unanswered(outcome) if isinstance(outcome, asyncio.Task) else outcome
            finally:
                if not is_handed_on:
                    limit.give_back()
        elif len(frame) > self._max_other_bytes:
            raise ProtocolError(f"a request of {len(frame)} bytes; {self._max_other_bytes} are allowed but for Produce")
        elif key == _FETCH_KEY and FETCH.min_version <= version <= FETCH.max_version:
            if len(frame) <= _AT_ONCE_BYTES:
                fetched = fetch.decode_request(version, frame, header.body_start, self._max_entries)
                answer = await self._fetch(version, header.correlation_id, fetched, caller)
            else:
                answer = await self._large_fetch(header, frame, caller)
        else:
            async with self._request_limit:
                answer = await self._answer(header, frame, caller)
        self._metrics.observe(key, perf_counter() - started, len(frame), answer.size, answer.failed)
        return answer.parts

    async def _acknowledge(
        self, replicated: Coroutine[Any, Any, ResponseFrame], started: float, request_bytes: int
    ) -> Parts:
        """Answers a Produce request when followers have what it appended; it keeps its turn until then."""
        try:
            answer = await replicated
            self._metrics.observe(_PRODUCE_KEY, perf_counter() - started, request_bytes, answer.size, answer.failed)
            return answer.parts
        finally:
            self._request_limit.give_back()

    async def _answer(self, header: RequestHeader, frame: memoryview, caller: Caller) -> ResponseFrame:
        api = APIS[header.api_key]
        version = header.api_version
        if api is API_VERSIONS:
            return self._api_versions(header)
        handler = self._handlers.find(api) if api.supports(version) else None
        if handler is None:
            raise ProtocolError(f"{api.name} v{version} is not supported")
        max_entries = min(self._max_entries, MAX_ENTRIES.get(api.key, self._max_entries))
        work = Work(self._slices, self._max_answer_entries, self._long_answers)
        context = RequestContext(version, caller, work)
        held = 0
        try:
            if len(frame) <= _AT_ONCE_BYTES:
                request = apis.decode_request(api, version, frame, header.body_start, max_entries)
            else:
                held = await self._reserve(frame, max_entries)
                steps = apis.decode_request_in_steps(api, version, frame, header.body_start, max_entries)
                request, entries = await work.through(steps)
                self._entries.give_back(held - entries)
                held = entries
            response = await handler(request, context)
            parts = await self._encode(api, header, response, work, is_long=held > _SHORT_REQUEST)
            return ResponseFrame(parts, size_of(parts), bool(getattr(response, "error_code", 0)))
        finally:
            if held:
                self._entries.give_back(held)
            await work.close()

    async def _large_fetch(self, header: RequestHeader, frame: memoryview, caller: Caller) -> ResponseFrame:
        held = await self._reserve(frame, self._max_entries)
        try:
            steps = fetch.decode_in_steps(header.api_version, frame, header.body_start, self._max_entries)
            fetched = await Work(self._slices).through(steps)
            entries = len(fetched.partitions) + len(fetched.forgotten)
            self._entries.give_back(held - entries)
            held = entries
            return await self._fetch(header.api_version, header.correlation_id, fetched, caller)
        finally:
            self._entries.give_back(held)

    async def _reserve(self, frame: memoryview, max_entries: int) -> int:
        """Takes as many entries as the request may have, before it is known how many it has."""
        held = min(max_entries, len(frame) // _LEAST_ENTRY_BYTES)
        await self._entries.take(held)
        return held

    async def _encode(self, api: Api, header: RequestHeader, response: Any, work: Work, *, is_long: bool) -> Parts:
        version, correlation_id = header.api_version, header.correlation_id
        if api is METADATA and (kept := self._encoded_metadata.find(version, response)) is not None:
            return kept.parts(correlation_id)
        if isinstance(response, AcceptedCommit):
            return [response.frame(version, correlation_id)]
        if is_long or work.is_long or work.has_paused:
            encoded = await work.through(apis.encode_response_in_steps(api, version, correlation_id, response))
        else:
            encoded = apis.encode_response(api, version, correlation_id, response)
        if api is METADATA:
            self._encoded_metadata.keep(version, response, encoded)
        return [encoded]

    def _api_versions(self, header: RequestHeader) -> ResponseFrame:
        """A version that is too new is answered in version 0 with the error, so that the client can try again lower."""
        version, code = header.api_version, Code.NONE
        if not API_VERSIONS.supports(version):
            version, code = 0, Code.UNSUPPORTED_VERSION
        response = ApiVersionsResponse(
            error_code=code,
            api_keys=self.advertised,
            supported_features=supported(version),
            finalized_features_epoch=FEATURES_EPOCH,
            finalized_features=FINALIZED,
        )
        encoded = apis.encode_response(API_VERSIONS, version, header.correlation_id, response)
        return ResponseFrame([encoded], len(encoded), code != Code.NONE)
