"""From a frame to the handler that answers it.

One of the two places where errors are caught (the other is the connection): a request that cannot be read closes its
connection, as in Kafka; an error inside a handler of the broker closes it too and is logged, and the broker lives on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter
from typing import Any, Protocol

from penstock.broker.answer import Answer
from penstock.broker.context import RequestContext
from penstock.broker.encoded import EncodedMetadata
from penstock.broker.features import FEATURES_EPOCH, FINALIZED, supported
from penstock.broker.handlers.fetch import FetchHandler
from penstock.broker.handlers.produce import ProduceHandler
from penstock.broker.metrics import RequestMetrics
from penstock.broker.turns import Turns
from penstock.config.broker import Limits
from penstock.errors import Code, ProtocolError
from penstock.net.caller import Caller
from penstock.protocol import apis, fetch, produce
from penstock.protocol.apis import API_VERSIONS, APIS, FETCH, METADATA, PRODUCE, Api
from penstock.protocol.header import RequestHeader
from penstock.protocol.messages.api_versions import ApiVersionsResponse

MessageHandler = Callable[[Any, RequestContext], Awaitable[Any]]

_PRODUCE_KEY, _FETCH_KEY = PRODUCE.key, FETCH.key


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
    ) -> None:
        self._produce = produce_handler.produce
        self._fetch = fetch_handler.fetch
        self._handlers = handlers
        self._metrics = metrics
        self._max_other_bytes = limits.other_request_bytes
        self._turns = Turns(limits.in_flight_requests)
        self._encoded_metadata = EncodedMetadata()
        self._advertised = apis.advertise([PRODUCE.key, FETCH.key, API_VERSIONS.key, *handlers.keys()])

    async def handle(self, frame: memoryview, caller: Caller) -> list[Any]:
        """The parts of the response to one request frame."""
        started = perf_counter()
        header = apis.decode_header(frame)
        key, version = header.api_key, header.api_version
        if key == _PRODUCE_KEY and PRODUCE.min_version <= version <= PRODUCE.max_version:
            produced = produce.decode_request(version, frame, header.body_start)
            caller.has_produced = True
            async with self._turns:
                answer = await self._produce(version, header.correlation_id, produced)
        elif len(frame) > self._max_other_bytes:
            raise ProtocolError(f"a request of {len(frame)} bytes; {self._max_other_bytes} are allowed but for Produce")
        elif key == _FETCH_KEY and FETCH.min_version <= version <= FETCH.max_version:
            fetched = fetch.decode_request(version, frame, header.body_start)
            answer = await self._fetch(version, header.correlation_id, fetched)
        else:
            async with self._turns:
                answer = await self._answer(header, frame, caller)
        self._metrics.observe(key, perf_counter() - started, len(frame), answer.size, answer.failed)
        return answer.parts

    async def _answer(self, header: RequestHeader, frame: memoryview, caller: Caller) -> Answer:
        api = APIS[header.api_key]
        version = header.api_version
        if api is API_VERSIONS:
            return self._api_versions(header)
        handler = self._handlers.find(api) if api.supports(version) else None
        if handler is None:
            raise ProtocolError(f"{api.name} v{version} is not supported")
        request = apis.decode_request(api, version, frame, header.body_start)
        context = RequestContext(version, header.client_id, caller.host, caller.has_produced)
        response = await handler(request, context)
        if api is METADATA:
            encoded = self._encoded_metadata.encode(version, header.correlation_id, response)
        else:
            encoded = apis.encode_response(api, version, header.correlation_id, response)
        return Answer([encoded], len(encoded), bool(getattr(response, "error_code", 0)))

    def _api_versions(self, header: RequestHeader) -> Answer:
        """A version that is too new is answered in version 0 with the error, so that the client can try again lower."""
        version, code = header.api_version, Code.NONE
        if not API_VERSIONS.supports(version):
            version, code = 0, Code.UNSUPPORTED_VERSION
        response = ApiVersionsResponse(
            error_code=code,
            api_keys=self._advertised,
            supported_features=supported(version),
            finalized_features_epoch=FEATURES_EPOCH,
            finalized_features=FINALIZED,
        )
        encoded = apis.encode_response(API_VERSIONS, version, header.correlation_id, response)
        return Answer([encoded], len(encoded), code != Code.NONE)
