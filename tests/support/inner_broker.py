"""A whole broker in this process, asked without a connection: so a test can be any caller that it wants to be."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.stages import ClusterStage, DataStage, ServingStage
from penstock.config.loader import load
from penstock.net.caller import Caller
from penstock.net.connection import Unanswered
from penstock.parts import read_parts
from penstock.protocol import apis, decoding
from penstock.protocol.apis import Api
from support.wire import body_of, request_frame
from unit.protocol.kio_oracle import kio_class, kio_read


class _ShownBroker(Broker):
    """Keeps what answers requests where a test finds it."""

    serving: ServingStage

    def _assemble_request_handling(self, cluster: ClusterStage, data: DataStage) -> ServingStage:
        self.serving = super()._assemble_request_handling(cluster, data)
        return self.serving


class InnerBroker:
    """Runs until it is closed, on an event loop of its own that turns only while it is asked something."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        flags = {"broker.data": str(folder), "broker.listen": "127.0.0.1:0", "broker.http": "127.0.0.1:0"}
        self._broker = _ShownBroker(load(None, {}, {**flags, **settings}))
        self._runner = asyncio.Runner()
        self._runner.run(self._broker.start())
        self._correlation_id = 0

    def close(self) -> None:
        self._runner.run(self._broker.close())
        self._runner.close()

    @property
    def denied(self) -> int:
        """How often something was denied."""
        permissions = self._broker.serving.permissions
        return 0 if permissions is None else sum(permissions.denials.counts.values())

    @property
    def answered(self) -> set[int]:
        """The calls that it answers."""
        return {each.api_key for each in self._broker.serving.dispatcher.advertised}

    def ask(self, caller: Caller, api: Api, version: int, message: Any) -> dict[str, Any]:
        """The answer as a plain value: a dict by Kafka's field names."""
        return self.start(caller, api, version, message)()

    def start(self, caller: Caller, api: Api, version: int, message: Any) -> Callable[[], dict[str, Any]]:
        """Asks, and gives what waits for the answer."""
        self._correlation_id += 1
        number = self._correlation_id
        # Batches are stamped where they lie.
        frame = bytearray(request_frame(api, version, number, body_of(api, version, message)))
        answered = self._runner.run(self._begin(frame, caller))

        def wait() -> dict[str, Any]:
            return _plain(api, version, number, self._runner.run(_result(answered)))

        return wait

    async def _begin(self, frame: bytearray, caller: Caller) -> asyncio.Task[bytes]:
        async def handle() -> bytes:
            outcome = await self._broker.serving.dispatcher.handle(memoryview(frame)[4:], caller)
            return read_parts(await outcome.response if isinstance(outcome, Unanswered) else outcome)

        task = asyncio.create_task(handle())
        await asyncio.sleep(0)
        return task


async def _result(task: asyncio.Task[bytes]) -> bytes:
    return await task


def _plain(api: Api, version: int, correlation_id: int, answer: bytes) -> dict[str, Any]:
    assert struct.unpack_from(">i", answer, 4)[0] == correlation_id
    flexible = version >= api.flexible_from and api is not apis.API_VERSIONS
    body = answer[9 if flexible else 8 :]
    if api is apis.DESCRIBE_TRANSACTIONS:
        # kio does not read the time -1, which says that no transaction is going on.
        return asdict(decoding.decode(api.response, version, memoryview(body), 0)[0])
    return kio_read(kio_class(api, version, "Response"), body)
