"""One client connection: takes frames, has them handled one after the other, and sends the responses.

`frames` cuts what arrives into frames, `transport` is the socket; here it is decided whose turn it is.

Rules:
- Requests of a connection are handled one after the other, as in Kafka. While one is being handled, or the client has
  not taken its response, no other is; what the client sends meanwhile stays in the socket.
- One exception: a Produce request that has been written and waits until that is safe (`Unanswered`) lets the Produce
  requests behind it begin, up to a bound. Any other request waits until it is answered.
- Responses go out in the order of the requests.
- A frame is handled where it was received. The handler may read and stamp it until it has responded, and must not keep
  it.
- A connection whose frames are large receives and handles them when it is its turn (`round_robin`), one with many
  small ones for a millisecond at a time: others do not wait for long.
- A request that does not have to wait is answered in the same turn of the loop (`eager`), several in one write.
- If a client closes its side, the Produce requests that it has sent are still carried out: with acks=0 it does not wait
  for a response before it closes. It would not read the responses to other requests.
- A caller that has used up a quota (`Caller.throttle_ms`) gets its answer, and then the broker reads nothing from it
  until its throttle time is over: a client that ignores the throttle time has to wait all the same.
- An error on one connection ends that connection only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import ProtocolError
from penstock.logs import fields
from penstock.net import eager
from penstock.net.buffers import Allowance
from penstock.net.caller import Caller
from penstock.net.frames import FrameBuffer
from penstock.net.round_robin import RoundRobin
from penstock.net.transport import Transport
from penstock.parts import Part

if TYPE_CHECKING:
    from penstock.net.login import Login

logger = logging.getLogger(__name__)

Parts = list[Part]
"""A response, in the order in which it goes out."""


class Unanswered(NamedTuple):
    """A Produce request that has been written and needs its frame no more; what its response says depends on a disk,
    a database or followers.
    """

    response: asyncio.Task[Parts]


Handler = Callable[[memoryview, Caller], Coroutine[Any, Any, Parts | Unanswered]]

_PRODUCE = b"\0\0"
"""How a request frame begins that is a Produce."""
_COALESCED_PARTS = 32
"""Responses of so many parts are sent in one go."""
_LARGE_BYTES = 256 * 1024
"""A connection with such frames takes turns with others: to receive, check and write one takes a tenth of a millisecond
or more.
"""
_TURN_S = 0.001
"""How long one connection handles what it has received before others have their turn."""


async def _handle_nothing(frame: memoryview, caller: Caller) -> Parts:
    raise ProtocolError("a request after the last one that is answered")


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
        max_unanswered: int,
        round_robin: RoundRobin,
        now: Callable[[], float],
        on_close: Callable[[Connection], None],
    ) -> None:
        """`max_unanswered`: Produce requests that may wait at once for what they have written to be safe."""
        self.host = caller.host
        self.caller = self._caller = caller
        self._loop = loop
        self._transport = transport
        self._fd = transport.fileno()
        self._handler = handler
        self._frames = FrameBuffer(allowance, max_frame_bytes, self._on_granted)
        self._round_robin = round_robin
        self._has_asked = False
        """For a turn, because its frames are large."""
        self._now = now
        self._on_close = on_close
        self._task: asyncio.Task[Parts | Unanswered] | None = None
        """The request that is being handled, if it has to wait."""
        self._max_unanswered = max_unanswered
        self._unanswered: deque[asyncio.Task[Parts] | Parts] = deque()
        """Requests that are written, in order: the first is not safe yet, and those behind it wait with it."""
        self._unsent = transport.unsent
        self._receive_into = transport.receive_into
        self._idle: asyncio.Future[None] | None = None
        self._is_reading = False
        self._is_writing = False
        self._is_resting = False
        """It goes on in the next turn of the event loop."""
        self._muted: asyncio.TimerHandle | None = None
        """Set while the caller is throttled."""
        self._is_ended = False
        """The peer sends nothing more, or is not heard any more."""
        self._ends_itself = False
        """It is this side that ends, after the response to what is being handled."""
        self._is_closed = False
        self._last_heard = self._opened = now()
        self._resume_reading()

    @property
    def login(self) -> Login | None:
        return self._caller.login

    def take_requests(self, handler: Handler, max_frame_bytes: int, *, min_frame_bytes: int | None = None) -> None:
        """From the next frame on, `handler` handles them, and they are of these sizes."""
        self._handler = handler
        self._frames.limit(max_frame_bytes, min_frame_bytes)

    def end_after_response(self) -> None:
        """Handles nothing more: the response to what is being handled is the last."""
        self._handler = _handle_nothing
        self._is_ended = True
        self._ends_itself = True
        self._pause_reading()

    @property
    def is_idle(self) -> bool:
        return self._task is None and not self._unsent and not self._unanswered

    @property
    def is_muted(self) -> bool:
        return self._muted is not None

    def use(self, handler: Handler) -> None:
        """Has further requests handled by another one, if they are not the login's or nothing is handled any more."""
        login = self.login
        if login is not None:
            is_logging_in = self._handler != login.dispatch
            login.dispatch = handler
            if is_logging_in:
                return
        if not self._ends_itself:
            self._handler = handler

    def unmute(self) -> None:
        """Reads from the caller again."""
        if self._muted is None:
            return
        self._muted.cancel()
        self._muted = None
        self._last_heard = self._now()
        if self._task is None and not self._is_writing and not self._is_closed:
            self._pump()

    def when_idle(self) -> asyncio.Future[None]:
        """Done when the requests that are being handled have been answered, or the connection is closed."""
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
        for one in self._unanswered:
            if isinstance(one, asyncio.Task):
                one.cancel()
        self._unanswered.clear()
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
        self._frames.stop_waiting()
        self._frames.release()
        self._transport.close()
        self._tell_idle()
        self._on_close(self)

    def look_after(self, idle_before: float, stalled_before: float) -> None:
        """Called now and then: closes a connection that is silent, frees memory that is not used."""
        if self._muted is not None:
            return  # it is us who keep this one waiting
        if self._last_heard < idle_before and self._task is None and not self._unanswered:
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
        if self._frames.borrowed < _LARGE_BYTES:
            self._receive()
        elif not self._has_asked:
            self._has_asked = True
            self._round_robin.ask(self._take_turn)

    def _take_turn(self) -> None:
        self._has_asked = False
        if self._is_reading:
            self._receive()

    def _receive(self) -> None:
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
        if self._task is not None:
            is_busy = self._caller.is_producing
        else:
            is_busy = self._is_resting or self._is_writing or bool(self._unanswered)
        if not is_busy:
            self.close()

    def _pump(self) -> None:
        """Handles what can be handled, sends what can be sent, and sees to it that the rest can arrive."""
        until = perf_counter() + _TURN_S
        try:
            while self._task is None and not self._is_writing and self._muted is None:
                if perf_counter() >= until:
                    self._rest()
                    break
                frame = self._frames.next_frame()
                if frame is None:
                    if not self._unsent:
                        break
                    self._send()
                    continue
                if self._unanswered and not self._may_begin(frame):
                    self._frames.put_back(frame)
                    if self._unsent:
                        self._send()
                    break
                outcome = eager.start(self._loop, self._handler(frame, self._caller), self._on_handled)
                if isinstance(outcome, asyncio.Task):
                    self._task = outcome
                    if self._is_ended and not self._caller.is_producing and not self._ends_itself:
                        self.close()
                        break
                    outcome.add_done_callback(self._on_task_done)
                    if self._unsent:
                        self._send()
                    break
                if self._unanswered or isinstance(outcome, Unanswered):
                    self._answer_later(outcome)
                else:
                    self._unsent.extend(outcome)
                    if len(self._unsent) >= _COALESCED_PARTS or (outcome and not isinstance(outcome[-1], bytes)):
                        self._send()
                if self._caller.throttle_ms:
                    self._mute()
            is_at_rest = self._task is None and not self._is_writing and not self._is_resting and self._muted is None
            if self._is_ended and is_at_rest and not self._unanswered:
                self.close()
            if not self._is_closed and self._task is None:
                if self._muted is None:
                    self._make_room()
                if self._idle is not None and self.is_idle:
                    self._tell_idle()
        except ProtocolError as error:
            self._refuse(error)
        except Exception:
            logger.exception("connection closed after an error in the broker", extra=fields(host=self.host))
            self.close()

    def _may_begin(self, frame: memoryview) -> bool:
        """Whether a request is handled though those before it are not answered."""
        return frame[:2] == _PRODUCE and len(self._unanswered) < self._max_unanswered and self._idle is None

    def _answer_later(self, outcome: Parts | Unanswered) -> None:
        """Answers when everything before is answered."""
        if isinstance(outcome, Unanswered):
            self._unanswered.append(outcome.response)
            outcome.response.add_done_callback(self._on_answered)
        elif outcome:
            self._unanswered.append(outcome)

    def _refuse(self, error: ProtocolError) -> None:
        """Handles nothing more, and closes the connection when the requests before the bad one are answered."""
        logger.info("connection closed", extra=fields(host=self.host, reason=str(error)))
        if self._unsent:
            self._send()
        if self._unanswered and not self._is_closed:
            self.end_after_response()
            self._frames.stop_waiting()
            self._frames.release()
        else:
            self.close()

    def _mute(self) -> None:
        """Sends the answer, and takes nothing more until the caller's time is over."""
        throttle_ms, self._caller.throttle_ms = self._caller.throttle_ms, 0
        self._muted = self._loop.call_later(throttle_ms / 1000, self.unmute)
        self._pause_reading()
        if self._unsent:
            self._send()
        if not self._is_closed:
            # Others shall not do without the memory meanwhile.
            self._frames.stop_waiting()
            self._frames.shrink()

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
        if self._frames.make_room() and not self._frames.is_full:
            self._resume_reading()
            if self._transport.has_buffered:
                self._loop.call_soon(self._read_buffered)
        else:
            self._pause_reading()

    def _on_granted(self) -> None:
        # Its time to send the rest begins now.
        self._last_heard = self._now()
        if self._task is None and self._muted is None:
            self._make_room()

    def _on_handled(self, outcome: Parts | Unanswered) -> None:
        """The request that had to wait has been handled; its task is about to end."""
        if self._is_closed:
            if isinstance(outcome, Unanswered):
                outcome.response.cancel()
            return
        self._task = None
        self._last_heard = self._now()
        if self._unanswered or isinstance(outcome, Unanswered):
            self._answer_later(outcome)
        else:
            self._unsent.extend(outcome)
        if self._caller.throttle_ms:
            self._mute()
        self._pump()

    def _on_task_done(self, task: asyncio.Task[Parts | Unanswered]) -> None:
        """What `_on_handled` has not heard of: a request that failed, or whose connection was closed."""
        if task.cancelled():
            self.close()
            return
        error = task.exception()
        if error is None or self._is_closed:
            return
        self._task = None
        if isinstance(error, ProtocolError):
            self._refuse(error)
        else:
            self._close_after(error)

    def _on_answered(self, task: asyncio.Task[Parts]) -> None:
        """Followers have decided what the response to a Produce request says."""
        error = None if task.cancelled() else task.exception()
        if self._is_closed:
            return
        if task.cancelled():
            self.close()
            return
        if error is not None:
            self._close_after(error)
            return
        self._last_heard = self._now()
        unanswered = self._unanswered
        while unanswered:
            first = unanswered[0]
            if isinstance(first, asyncio.Task):
                if not first.done() or first.cancelled() or first.exception() is not None:
                    break  # it is not its turn, or it says so itself
                first = first.result()
            unanswered.popleft()
            self._unsent.extend(first)
        if self._unsent and not self._is_writing:
            self._send()
        if self._task is None and not self._is_writing and not self._is_resting and not self._is_closed:
            self._pump()

    def _close_after(self, error: BaseException) -> None:
        logger.error("connection closed after an error in the broker", extra=fields(host=self.host), exc_info=error)
        self.close()

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
        if not self._is_reading and not self._is_closed and not self._is_ended and self._muted is None:
            self._is_reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)
