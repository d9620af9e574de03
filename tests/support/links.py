"""Connections that can be cut: a gate in front of an address passes bytes on until it is shut, and loses none.

A gate that is shut is a network that is cut: who is connected hears nothing any more, not even that the other side is
gone, and who connects gets no answer. When it is opened again everything arrives late, as after a repair.

The gates are in a process of their own, which this file is too: among the threads of a test that has clients at work,
what passes would wait for its turn. It is told what to do line by line, in JSON, and answers each line with one.
"""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.programs import dying_with_us

_CHUNK_BYTES = 1 << 16
_CLIENT_ID_AT = 12
"""Where the length of the client's name stands in a frame: after size, key, version and correlation id."""


class Gate:
    """Passes to one address what comes to its own; made by `Links`."""

    def __init__(self, ask: Callable[..., Any], number: int, address: str, knows_callers: bool) -> None:
        self._ask = ask
        self._number = number
        self._knows_callers = knows_callers
        self.address = address

    def shut(self, callers: Iterable[str] | None = None) -> None:
        """For those that say by their first Kafka request that they are one of `callers`; None is for all."""
        names = None if callers is None else sorted(callers)
        assert not names or self._knows_callers
        self._ask(gate=self._number, shut_for=names)

    def open(self) -> None:
        self.shut(())


class Links:
    """Gates, and the process that they are in; it ends on leaving its `with`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()
        self._count = 0

    def __enter__(self) -> Links:
        command = dying_with_us([sys.executable, __file__])
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def gate(self, target: str, *, knows_callers: bool = False) -> Gate:
        address = self._ask(target=target, knows_callers=knows_callers)
        self._count += 1
        return Gate(self._ask, self._count - 1, address, knows_callers)

    def _ask(self, **command: Any) -> Any:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, "the process of the gates has ended"
        return json.loads(answer)


class _Passage:
    """A gate in the process that the gates are in."""

    def __init__(self, target: str, knows_callers: bool) -> None:
        self._target = target
        self._knows_callers = knows_callers
        self._shut_for: frozenset[str] = frozenset()
        self._is_shut = False
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    def shut(self, callers: Iterable[str] | None) -> None:
        self._is_shut = callers is None
        self._shut_for = frozenset(callers or ())
        self._changed.set()
        self._changed = asyncio.Event()

    async def listen(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _passage(self, caller: str) -> None:
        """Returns when the caller may pass."""
        while self._is_shut or caller in self._shut_for:
            await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._pass_on(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, caller = b"", ""
        if self._knows_callers:
            first = await reader.readexactly(_CLIENT_ID_AT + 2)
            (length,) = struct.unpack_from(">h", first, _CLIENT_ID_AT)
            name = await reader.readexactly(max(length, 0))
            first, caller = first + name, name.decode()
        await self._passage(caller)
        host, _, port = self._target.rpartition(":")
        their_reader, their_writer = await asyncio.open_connection(host, int(port))
        try:
            their_writer.write(first)
            ways = [
                asyncio.ensure_future(self._pump(reader, their_writer, caller)),
                asyncio.ensure_future(self._pump(their_reader, writer, caller)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.wait(ways)
        finally:
            their_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: str) -> None:
        """Ends when one side has closed and the other may know it."""
        try:
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._passage(caller)
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        await self._passage(caller)


async def _obey() -> None:
    """Does what the lines on the standard input say, until they end."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    gates: list[_Passage] = []
    while line := await lines.readline():
        command = json.loads(line)
        answer: str | None = None
        if "target" in command:
            gates.append(_Passage(command["target"], command["knows_callers"]))
            answer = await gates[-1].listen()
        else:
            gates[command["gate"]].shut(command["shut_for"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(_obey())
