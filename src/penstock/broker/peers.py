"""Requests to the other brokers of the cluster, over a few connections to each, made when they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.cluster.metadata import MetadataImage
from penstock.errors import PeerError
from penstock.ids import BrokerId
from penstock.net.peer import Peer
from penstock.protocol import decoding, encoding
from penstock.protocol.apis import Api

_CONNECTIONS = 4
"""To each broker; a connection has one request under way."""
_MAX_ANSWER_BYTES = 16 << 20
_TIMEOUT_S = 10.0


class _Lines:
    """The connections to one broker at one address."""

    def __init__(self) -> None:
        self.idle: list[Peer] = []
        self.free = asyncio.Semaphore(_CONNECTIONS)


class Peers:
    def __init__(self, me: BrokerId, image: Callable[[], MetadataImage]) -> None:
        self._me = me
        self._image = image
        self._lines: dict[tuple[str, int], _Lines] = {}

    async def call(self, broker: BrokerId, api: Api, version: int, request: object) -> Any:
        """The other broker's response; PeerError if it is not there or does not answer."""
        info = self._image().brokers.get(broker)
        if info is None or not info.is_alive:
            raise PeerError(f"broker {broker} is not there")
        lines = self._lines.setdefault((info.host, info.port), _Lines())
        async with lines.free:
            peer = lines.idle.pop() if lines.idle else self._connect(info.host, info.port)
            try:
                body = await asyncio.create_task(
                    # A request runs outside any task until it first waits, and a call has to be in one.
                    peer.call(
                        api.key,
                        version,
                        encoding.encode(request, version),
                        is_flexible=version >= api.flexible_from,
                    )
                )
            except PeerError:
                await peer.close()
                raise
            lines.idle.append(peer)
        return decoding.decode(api.response, version, body, 0)[0]

    async def close(self) -> None:
        lines, self._lines = self._lines, {}
        for found in lines.values():
            for peer in found.idle:
                await peer.close()

    def _connect(self, host: str, port: int) -> Peer:
        return Peer(host, port, f"penstock-{self._me}", max_answer_bytes=_MAX_ANSWER_BYTES, timeout_s=_TIMEOUT_S)
