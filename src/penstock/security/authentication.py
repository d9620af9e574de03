"""The authentication of one connection as a pure state machine (KIP-43, KIP-152, KIP-368).

    HANDSHAKE  --SaslHandshake, known mechanism-->  EXCHANGE        --token, accepted-->  AUTHENTICATED
    HANDSHAKE  --SaslHandshake, unknown one------>  FAILED          --token, refused--->  FAILED
    AUTHENTICATED  --SaslHandshake--------------->  EXCHANGE (re-authentication: the same user, the same mechanism)
    AUTHENTICATED  --the session's life ends----->  EXPIRED         --SaslHandshake---->  EXCHANGE

Only AUTHENTICATED lets requests through. In every other state a client may ask for versions and log in; FAILED takes
nothing more. See `docs/internals/security.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from penstock.security.exchange import Accepted, Challenge, Exchange, Later, LoginError, Refused, Step

_LEAST_S_BETWEEN_LOGINS = 1.0
"""Kafka's: a client that logs in again sooner does not count the time that its session lasts."""


class Stage(Enum):
    HANDSHAKE = "handshake"
    EXCHANGE = "exchange"
    AUTHENTICATED = "authenticated"
    EXPIRED = "expired"
    FAILED = "failed"


class Session(NamedTuple):
    """What a login gave."""

    user: str
    life_s: float | None
    """How long it lasts; None for as long as the connection."""


class Authentication:
    """Where one connection is on its way to a user."""

    def __init__(
        self,
        mechanisms: Mapping[str, Callable[[], Exchange]],
        max_session_s: float | None,
        now: Callable[[], float],
        wall_time_s: Callable[[], float],
    ) -> None:
        """`mechanisms` has those that are enabled, and makes the exchange of each login."""
        self._mechanisms = mechanisms
        self._max_session_s = max_session_s
        self._now = now
        self._wall_time_s = wall_time_s
        self._exchange: Exchange | None = None
        self._since = 0.0
        self.stage = Stage.HANDSHAKE
        self.mechanism: str | None = None
        self.session: Session | None = None
        self.has_logged_in_again = False

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return tuple(self._mechanisms)

    def handshake(self, mechanism: str) -> None:
        """Begins a login; LoginError if the mechanism is not enabled here, or this is not the time for it."""
        if self.stage is Stage.AUTHENTICATED and self._now() - self._since < _LEAST_S_BETWEEN_LOGINS:
            # The session goes on: the client has only been too quick.
            raise TooSoonError("the client logs in again too soon")
        if self.stage not in (Stage.HANDSHAKE, Stage.AUTHENTICATED, Stage.EXPIRED):
            self.stage = Stage.FAILED
            raise LoginError("a second SaslHandshake during a login")
        if mechanism not in self._mechanisms:
            self.stage = Stage.FAILED
            raise UnknownMechanismError("the mechanism is not enabled on this listener")
        if self.session is not None and mechanism != self.mechanism:
            self.stage = Stage.FAILED
            raise LoginError("the client logs in again with another mechanism")
        self.mechanism = mechanism
        self._exchange = self._mechanisms[mechanism]()
        self.stage = Stage.EXCHANGE

    def token(self, message: bytes) -> Step:
        """The step that a message of the client leads to. `conclude` must be called with it, or with what a Later
        gives.
        """
        if self.stage is not Stage.EXCHANGE or self._exchange is None:
            return Refused("a SaslAuthenticate without a SaslHandshake before it")
        return self._exchange.step(message)

    def conclude(self, step: Challenge | Accepted | Refused) -> Challenge | Accepted | Refused:
        """Takes the step; returns the answer for the client."""
        assert not isinstance(step, Later)
        if isinstance(step, Challenge):
            return step
        self._exchange = None
        if isinstance(step, Accepted):
            life_s = self._life_s(step)
            if self.session is not None and self.session.user != step.user:
                step = Refused("the client logs in again as another user", step.user)
            elif life_s is not None and life_s <= 0:
                step = Refused("the credentials of the client have expired", step.user)
            else:
                self.has_logged_in_again = self.session is not None
                self.session = Session(step.user, life_s)
                self._since = self._now()
                self.stage = Stage.AUTHENTICATED
                return step
        self.stage = Stage.FAILED
        return step

    def expire(self) -> None:
        """The session's life has ended; the client has to log in again before anything else."""
        if self.stage is Stage.AUTHENTICATED:
            self.stage = Stage.EXPIRED

    def _life_s(self, accepted: Accepted) -> float | None:
        lives = [] if self._max_session_s is None else [self._max_session_s]
        if accepted.expires_at_s is not None:
            lives.append(accepted.expires_at_s - self._wall_time_s())
        return min(lives, default=None)


class UnknownMechanismError(LoginError):
    """The client may choose another mechanism, on another connection."""


class TooSoonError(LoginError):
    """Nothing has happened: the session goes on."""
