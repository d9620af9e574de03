"""Logging in to SASL listeners: what stands between a connection and the dispatcher until the client is known.

Rules:
- Until a client has logged in, its requests come here, and only those that a login needs go on; any other closes the
  connection. Then the connection gives its requests to the dispatcher itself: a client that has logged in costs nothing
  here. When its session ends, or it begins to log in again, they come here once more.
- Clients that have not logged in have little of everything: frames, time, connections from one address.
- A failed login is answered late. It keeps its place among the connections of its address until then, even if the
  client leaves: otherwise a guesser would not have to wait.
- Passwords are hashed, and tokens checked, in threads of their own.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.config.broker import Limits
from penstock.config.listeners import ListenerSettings
from penstock.config.security import SecuritySettings
from penstock.errors import Code, ProtocolError
from penstock.logs import fields
from penstock.net.caller import Caller
from penstock.protocol import apis
from penstock.protocol.apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from penstock.protocol.messages.sasl_handshake import SaslHandshakeResponse
from penstock.security.authentication import Authentication, Stage, TooSoonError, UnknownMechanismError
from penstock.security.exchange import Challenge, Exchange, Later, LoginError, Refused
from penstock.security.failed_logins import FailedLogins
from penstock.security.principal import Principal

if TYPE_CHECKING:
    from penstock.net.connection import Connection, Handler, Parts, Unanswered

logger = logging.getLogger(__name__)

_SIZE = struct.Struct(">i").pack
_THREADS = 2
_LOGIN_KEYS = frozenset((API_VERSIONS.key, SASL_HANDSHAKE.key, SASL_AUTHENTICATE.key))
_ANSWER_TO_FAILURE = "Authentication failed: the user is unknown or what it showed is wrong."
"""The same for all reasons: the others are in the log of the broker."""

Mechanisms = Mapping[str, Callable[[], Exchange]]
"""What makes the exchange of a login, by mechanism."""


class Logins:
    """What the logins of all connections share."""

    def __init__(
        self,
        settings: SecuritySettings,
        limits: Limits,
        mechanisms: Mechanisms,
        is_known: Callable[[str], bool],
        wall_time_s: Callable[[], float],
    ) -> None:
        """`is_known` says whether there is a user of a name."""
        self.settings = settings
        self.limits = limits
        self.mechanisms = mechanisms
        self.is_known = is_known
        self.wall_time_s = wall_time_s
        self.executor = ThreadPoolExecutor(_THREADS, "penstock-login")
        self.failed = FailedLogins(
            settings.failed_login_delay_ms / 1000, settings.failed_login_max_delay_ms / 1000, limits.failed_login_hosts
        )
        self._loop = asyncio.get_running_loop()
        self._places: Counter[str] = Counter()
        self.accepted_by_mechanism: Counter[str] = Counter()
        self.failed_by_mechanism: Counter[str] = Counter()
        self.expired = 0
        """Sessions whose client went on without logging in again."""

    def close(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)

    def has_room(self, host: str) -> bool:
        return self._places[host] < self.limits.logins_per_host

    def take_place(self, host: str) -> None:
        self._places[host] += 1

    def give_back_place(self, host: str, after_s: float = 0.0) -> None:
        if after_s > 0:
            self._loop.call_later(after_s, self.give_back_place, host)
            return
        self._places[host] -= 1
        if not self._places[host]:
            del self._places[host]


class Login:
    """The login of one connection, as often as it takes place."""

    def __init__(
        self, logins: Logins, listener: ListenerSettings, connection: Connection, caller: Caller, dispatch: Handler
    ) -> None:
        """Stands in front of `dispatch`; the connection has taken a place."""
        self._logins = logins
        self._listener = listener
        self._connection = connection
        self._caller = caller
        self.dispatch = dispatch
        """What handles requests when the client is known."""
        self._loop = asyncio.get_running_loop()
        enabled = logins.settings.mechanisms_of(listener.protocol)
        max_session_ms = logins.settings.max_session_ms
        self._machine = Authentication(
            {name: logins.mechanisms[name] for name in enabled if name in logins.mechanisms},
            max_session_ms / 1000 if max_session_ms else None,
            self._loop.time,
            logins.wall_time_s,
        )
        self._has_place = True
        self._answer_at_s = 0.0
        """When a failed login may be answered."""
        self._takes_raw_tokens = False
        """After version 0 of the handshake tokens come without requests around them."""
        self._deadline: asyncio.TimerHandle | None = self._loop.call_later(
            logins.limits.login_ms / 1000, self._run_out_of_time
        )
        self._expiry: asyncio.TimerHandle | None = None
        caller.login = self
        connection.take_requests(self.handle, logins.limits.login_frame_bytes)

    def close(self) -> None:
        """The connection is closed."""
        for timer in (self._deadline, self._expiry):
            if timer is not None:
                timer.cancel()
        self._give_back_place(self._answer_at_s - self._loop.time())

    async def handle(self, frame: memoryview, caller: Caller) -> Parts | Unanswered:
        """Takes the place of the dispatcher while the client is not known."""
        if self._takes_raw_tokens:
            answer: Parts | Unanswered = await self._raw_answer(bytes(frame))
        else:
            header = apis.decode_header(frame)
            if header.api_key not in _LOGIN_KEYS:
                if self._machine.stage is Stage.EXPIRED:
                    self._logins.expired += 1
                    raise ProtocolError("the session has ended and the client has not logged in again")
                raise ProtocolError(f"{apis.APIS[header.api_key].name} before the client has logged in")
            answer = await self.dispatch(frame, caller)
        delay_s = self._answer_at_s - self._loop.time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        return answer

    def handshake(self, mechanism: str, version: int) -> SaslHandshakeResponse:
        try:
            self._machine.handshake(mechanism)
        except TooSoonError:
            return SaslHandshakeResponse(error_code=Code.ILLEGAL_SASL_STATE)
        except UnknownMechanismError as error:
            self._fail(str(error), None)
            return SaslHandshakeResponse(
                error_code=Code.UNSUPPORTED_SASL_MECHANISM, mechanisms=self._machine.mechanisms
            )
        except LoginError as error:
            self._fail(str(error), None)
            return SaslHandshakeResponse(error_code=Code.ILLEGAL_SASL_STATE)
        self._takes_raw_tokens = version == 0
        # A client that logs in again does nothing else until it has.
        self._connection.take_requests(
            self.handle, self._logins.limits.login_frame_bytes, min_frame_bytes=1 if self._takes_raw_tokens else None
        )
        return SaslHandshakeResponse(mechanisms=self._machine.mechanisms)

    async def authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        step = self._machine.token(token)
        if isinstance(step, Later):
            step = await self._loop.run_in_executor(self._logins.executor, step.work)
        outcome = self._machine.conclude(step)
        if isinstance(outcome, Challenge):
            return SaslAuthenticateResponse(auth_bytes=outcome.message)
        if isinstance(outcome, Refused):
            self._fail(outcome.reason, outcome.user)
            return SaslAuthenticateResponse(
                error_code=Code.SASL_AUTHENTICATION_FAILED, error_message=_ANSWER_TO_FAILURE
            )
        session = self._machine.session
        assert session is not None
        self._let_in(session.user, session.life_s)
        lifetime_ms = 0 if session.life_s is None else int(session.life_s * 1000)
        return SaslAuthenticateResponse(auth_bytes=outcome.message, session_lifetime_ms=lifetime_ms)

    async def _raw_answer(self, token: bytes) -> Parts:
        response = await self.authenticate(token)
        if response.error_code:
            # There is no room for an error in an answer without a response around it.
            await asyncio.sleep(max(0.0, self._answer_at_s - self._loop.time()))
            raise ProtocolError("the login failed")
        return [_SIZE(len(response.auth_bytes)) + response.auth_bytes]

    def _let_in(self, user: str, life_s: float | None) -> None:
        logins, caller = self._logins, self._caller
        self._takes_raw_tokens = False
        logins.accepted_by_mechanism[self._machine.mechanism or ""] += 1
        caller.principal = Principal.user(user)
        caller.is_inter_broker = self._listener.is_inter_broker and logins.settings.counts_as_broker(caller.principal)
        for timer in (self._deadline, self._expiry):
            if timer is not None:
                timer.cancel()
        self._deadline = None
        self._give_back_place()
        self._expiry = None if life_s is None else self._loop.call_later(life_s, self._end_session)
        self._connection.take_requests(self.dispatch, logins.limits.frame_bytes)

    def _end_session(self) -> None:
        self._machine.expire()
        if self._machine.stage is Stage.EXPIRED:
            self._connection.take_requests(self.handle, self._logins.limits.login_frame_bytes)

    def _fail(self, reason: str, user: str | None) -> None:
        logins, host = self._logins, self._caller.host
        mechanism = self._machine.mechanism
        logins.failed_by_mechanism[mechanism or "none"] += 1
        logger.warning(
            "login failed",
            extra=fields(
                host=host,
                listener=self._listener.name,
                mechanism=mechanism or "none",
                reason=reason,
                # What is not the name of a user may be a password in the wrong place.
                **({"user": user} if user is not None and logins.is_known(user) else {}),
            ),
        )
        now = self._loop.time()
        self._answer_at_s = now + logins.failed.note(host, now)
        self._connection.end_after_response()

    def _run_out_of_time(self) -> None:
        self._deadline = None
        if self._answer_at_s:
            return  # it waits for the answer to its failure
        logger.info(
            "connection closed: no login in time",
            extra=fields(host=self._caller.host, listener=self._listener.name),
        )
        self._connection.close()

    def _give_back_place(self, after_s: float = 0.0) -> None:
        if self._has_place:
            self._has_place = False
            self._logins.give_back_place(self._caller.host, after_s)
