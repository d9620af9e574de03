"""One client connection: takes frames, has them handled one after the other, and sends the responses.

`frames` cuts what arrives into frames, `transport` is the socket; here it is decided whose turn it is.

Rules:
- Requests of a connection are handled one after the other, as in Kafka, so responses keep their order. While one is
  being handled, or the client has not taken its response, no other is; what the client sends meanwhile stays in the
  socket.
- A frame is handled where it was received. The handler may read and stamp it until it has responded, and must not keep
  it.
- A request that does not have to wait is answered in the same turn of the loop (`eager`), several in one write.
- If a client closes its side, the Produce requests that it has sent are still carried out: with acks=0 it does not wait
  for a response before it closes. Nobody would read the responses to other requests.
- An error on one connection ends that connection only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from penstock.errors import ProtocolError
from penstock.logs import fields
from penstock.net import eager
from penstock.net.buffers import Allowance
from penstock.net.caller import Caller
from penstock.net.frames import FrameBuffer
from penstock.net.transport import Transport
from penstock.parts import Part

logger = logging.getLogger(__name__)

Parts = list[Part]
"""A response, in the order in which it goes out."""

Handler = Callable[[memoryview, Caller], Coroutine[Any, Any, Parts]]

_COALESCED_PARTS = 32
"""Responses of so many parts are sent in one go."""
_TURN_S = 0.005
"""How long one connection handles what it has received before others have their turn."""


class Connection:
    """The requests and responses of one client."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        caller: Caller,
        handler: Handler,
        allowance: Allowance,
        max_frame_bytes: int,
        now: Callable[[], float],
        on_close: Callable[[Connection], None],
    ) -> None:
        self.host = caller.host
        self._caller = caller
        self._loop = loop
        self._transport = transport
        self._fd = transport.fileno()
        self._handler = handler
        self._frames = FrameBuffer(allowance, max_frame_bytes, self._on_granted)
        self._now = now
        self._on_close = on_close
        self._task: asyncio.Task[Parts] | None = None
        self._unsent = transport.unsent
        self._receive_into = transport.receive_into
        self._idle: asyncio.Future[None] | None = None
        self._is_reading = False
        self._is_writing = False
        self._is_resting = False
        """It goes on in the next turn of the event loop."""
        self._is_ended = False
        """The peer sends nothing more."""
        self._is_closed = False
        self._last_heard = self._opened = now()
        self._resume_reading()

    @property
    def is_idle(self) -> bool:
        return self._task is None and not self._unsent

    def when_idle(self) -> asyncio.Future[None]:
        """Done when the request that is being handled has been answered, or the connection is closed."""
        if self._idle is None:
            self._idle = self._loop.create_future()
        return self._idle

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._pause_reading()
        if self._is_writing:
            self._loop.remove_writer(self._fd)
        if self._task is not None:
            self._task.cancel()
        self._frames.stop_waiting()
        self._frames.release()
        self._transport.close()
        self._tell_idle()
        self._on_close(self)

    def look_after(self, idle_before: float, stalled_before: float) -> None:
        """Called now and then: closes a connection that is silent, frees memory that is not used."""
        if self._last_heard < idle_before and self._task is None:
            self.close()
        elif not self._transport.is_established:
            if self._opened < stalled_before:
                logger.info("connection closed: no TLS handshake", extra=fields(host=self.host))
                self.close()
        elif self._frames.is_waiting:
            return  # it is us who keep this one waiting
        elif not self._frames.is_empty and self.is_idle and self._last_heard < stalled_before:
            # Half a request and then nothing: it holds memory that others may need.
            logger.info("connection closed: request stalled", extra=fields(host=self.host))
            self.close()
        elif self._frames.is_empty and self.is_idle and self._last_heard < stalled_before:
            self._frames.release()

    def _on_readable(self) -> None:
        frames = self._frames
        count = frames.receive(self._receive_into)
        if count is None:
            if self._transport.wants_write and not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(self._fd, self._on_writable)
            return
        if count == 0:
            self._end_reading()
            return
        self._last_heard = self._now()
        if self._task is None and not self._is_writing and not self._is_resting:
            self._pump()
        if frames.is_full:
            # It has to wait for an answer: reading into no room would look like the peer's end.
            self._pause_reading()

    def _read_buffered(self) -> None:
        if self._is_reading:
            self._on_readable()

    def _end_reading(self) -> None:
        if not self._transport.is_established and self._transport.failure is not None:
            reason = self._transport.failure
            logger.info("connection closed: TLS handshake failed", extra=fields(host=self.host, reason=reason))
        self._is_ended = True
        self._pause_reading()
        is_busy = self._caller.is_producing if self._task is not None else self._is_resting or self._is_writing
        if not is_busy:
            self.close()

    def _pump(self) -> None:
        """Handles what can be handled, sends what can be sent, and sees to it that the rest can arrive."""
        until = perf_counter() + _TURN_S
        try:
            while self._task is None and not self._is_writing:
                if perf_counter() >= until:
                    self._rest()
                    break
                frame = self._frames.next_frame()
                if frame is None:
                    if not self._unsent:
                        break
                    self._send()
                    continue
                outcome = eager.start(self._loop, self._handler(frame, self._caller))
                if isinstance(outcome, asyncio.Task):
                    self._task = outcome
                    if self._is_ended and not self._caller.is_producing:
                        self.close()
                        break
                    outcome.add_done_callback(self._on_handled)
                    if self._unsent:
                        self._send()
                    break
                self._unsent.extend(outcome)
                if len(self._unsent) >= _COALESCED_PARTS or (outcome and not isinstance(outcome[-1], bytes)):
                    self._send()
            if self._is_ended and self._task is None and not self._is_writing and not self._is_resting:
                self.close()
            if not self._is_closed and self._task is None:
                self._make_room()
                if self._idle is not None and not self._unsent:
                    self._tell_idle()
        except ProtocolError as error:
            logger.info("connection closed", extra=fields(host=self.host, reason=str(error)))
            if self._unsent:
                self._send()  # the answers to the requests before the bad one
            self.close()
        except Exception:
            logger.exception("connection closed after an error in the broker", extra=fields(host=self.host))
            self.close()

    def _rest(self) -> None:
        """Lets the others have their turn before it goes on with what it has received."""
        if self._unsent:
            self._send()
        if not self._is_resting:
            self._is_resting = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_resting = False
        if self._task is None and not self._is_writing and not self._is_closed:
            self._pump()

    def _tell_idle(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _make_room(self) -> None:
        """Nothing is being handled: sees to it that the rest of the next frame can arrive."""
        if self._frames.make_room():
            self._resume_reading()
            if self._transport.has_buffered:
                self._loop.call_soon(self._read_buffered)
        else:
            self._pause_reading()

    def _on_granted(self) -> None:
        # Its time to send the rest begins now.
        self._last_heard = self._now()
        if self._task is None:
            self._make_room()

    def _on_handled(self, task: asyncio.Task[Parts]) -> None:
        self._task = None
        if self._is_closed or task.cancelled():
            if not task.cancelled():
                task.exception()  # seen, so that it is not reported as lost
            self.close()
            return
        error = task.exception()
        if isinstance(error, ProtocolError):
            logger.info("connection closed", extra=fields(host=self.host, reason=str(error)))
            self.close()
        elif error is not None:
            logger.error("connection closed after an error in the broker", extra=fields(host=self.host), exc_info=error)
            self.close()
        else:
            self._last_heard = self._now()
            self._unsent.extend(task.result())
            self._pump()

    def _send(self) -> None:
        """Sends what the peer takes; if that is not all, the loop calls again when it takes more."""
        try:
            self._transport.send()
        except OSError as error:
            logger.debug("connection lost", extra=fields(host=self.host, error=str(error)))
            self.close()
            return
        is_unfinished = bool(self._unsent) or self._transport.wants_write
        if is_unfinished and not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._fd, self._on_writable)
        elif not is_unfinished and self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)

    def _on_writable(self) -> None:
        self._last_heard = self._now()
        self._send()
        if not self._is_writing and not self._is_closed and self._task is None:
            self._pump()

    def _resume_reading(self) -> None:
        if not self._is_reading and not self._is_closed and not self._is_ended:
            self._is_reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)
