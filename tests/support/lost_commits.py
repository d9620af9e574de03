"""A network that loses one COMMIT on its way to a database, or the answer to it."""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from penstock.config.database_address import DatabaseAddress

_CHUNK_BYTES = 1 << 16


class Lost(Enum):
    """What does not arrive; the connection is cut either way."""

    COMMIT = auto()
    ANSWER = auto()


class LostCommits:
    """Passes bytes on to a database, until `lose` has named what is to be lost the next time."""

    def __init__(self, target: DatabaseAddress) -> None:
        self._target = target
        self._lose: Lost | None = None
        self._marker = b""
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> DatabaseAddress:
        """The address by which the database is reached through here."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        target = self._target
        return DatabaseAddress(target.dialect, target.database, "127.0.0.1", port, target.user, target.password)

    def lose(self, what: Lost, marker: bytes = b"") -> None:
        """The next time that a connection commits on which these bytes have passed from now on."""
        self._lose, self._marker = what, marker

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        answers, server = await asyncio.open_connection(self._target.host, self._target.port)
        back = asyncio.create_task(_pass_on(answers, writer))
        is_marked = False
        try:
            while chunk := await reader.read(_CHUNK_BYTES):
                is_marked |= self._lose is not None and self._marker in chunk
                lost = self._lose if is_marked and b"COMMIT" in chunk else None
                if lost is not None:
                    self._lose = None
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                if lost is not Lost.COMMIT:
                    server.write(chunk)
                if lost is Lost.ANSWER:
                    # It has answered, so it has committed.
                    await answers.read(1)
                if lost is not None:
                    break
        finally:
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)
            writer.close()
            server.close()
            self._connections.discard(task)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
    writer.close()
