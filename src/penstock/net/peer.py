"""A connection to another broker: one request at a time, answered before the next is sent.

A call that fails for whatever reason closes the connection; the next call opens another. Nothing from the other side is
unbounded: an answer has a largest size, a call a longest time.
"""

from __future__ import annotations

import asyncio
import struct

from penstock.errors import PeerError
from penstock.protocol.varint import read_uvarint

_i32 = struct.Struct(">i")
_header = struct.Struct(">hhi").pack


class Peer:
    """One other broker."""

    def __init__(self, host: str, port: int, client_id: str, *, max_answer_bytes: int, timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._client_id = client_id.encode()
        self._max_answer_bytes = max_answer_bytes
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._correlation_id = 0
        self._turn = asyncio.Lock()

    async def call(self, api_key: int, version: int, body: bytes, *, is_flexible: bool) -> memoryview:
        """The body of the answer; PeerError if there is none."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._call(api_key, version, body, is_flexible)
            except (OSError, EOFError, TimeoutError, PeerError) as error:
                self._drop()
                raise PeerError(
                    f"{self._host}:{self._port} does not answer: {error or type(error).__name__}"
                ) from error
            except BaseException:
                self._drop()
                raise

    async def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            try:
                await streams[1].wait_closed()
            except OSError:
                return

    async def _call(self, api_key: int, version: int, body: bytes, is_flexible: bool) -> memoryview:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        reader, writer = self._streams
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        head = _header(api_key, version, correlation_id) + len(self._client_id).to_bytes(2, "big") + self._client_id
        if is_flexible:
            head += b"\0"
        writer.write(_i32.pack(len(head) + len(body)) + head + body)
        await writer.drain()
        (size,) = _i32.unpack(await reader.readexactly(4))
        if not 4 <= size <= self._max_answer_bytes:
            raise PeerError(f"an answer of {size} bytes")
        answer = memoryview(await reader.readexactly(size))
        (answered,) = _i32.unpack_from(answer)
        if answered != correlation_id:
            raise PeerError(f"an answer to request {answered} where {correlation_id} was asked")
        if not is_flexible:
            return answer[4:]
        tags, position = read_uvarint(answer, 4)
        if tags:
            raise PeerError("an answer with header fields that nobody asked for")
        return answer[position:]

    def _drop(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
