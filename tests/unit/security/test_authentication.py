"""The way of one connection to a user, state by state."""

from __future__ import annotations

import pytest

from penstock.security.authentication import Authentication, Stage, TooSoonError, UnknownMechanismError
from penstock.security.exchange import Accepted, Challenge, LoginError, Refused, Step


class Scripted:
    """A mechanism whose steps are known."""

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)

    def step(self, message: bytes) -> Step:
        return self._steps.pop(0)


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def machine(*steps: Step, max_session_s: float | None = None, time: Time | None = None) -> Authentication:
    """Each login takes the given steps."""
    clock = time or Time()
    return Authentication(
        {"ONE": lambda: Scripted(*steps), "TWO": lambda: Scripted(*steps)}, max_session_s, clock, clock
    )


def say(authentication: Authentication, message: bytes = b"") -> Challenge | Accepted | Refused:
    step = authentication.token(message)
    assert isinstance(step, Challenge | Accepted | Refused)
    return authentication.conclude(step)


def check_stage(authentication: Authentication, stage: Stage) -> None:
    assert authentication.stage is stage


def test_a_login_of_several_messages() -> None:
    authentication = machine(Challenge(b"who"), Accepted("alice", b"welcome"))
    check_stage(authentication, Stage.HANDSHAKE)
    authentication.handshake("ONE")
    check_stage(authentication, Stage.EXCHANGE)
    assert say(authentication) == Challenge(b"who")
    check_stage(authentication, Stage.EXCHANGE)
    assert say(authentication) == Accepted("alice", b"welcome")
    check_stage(authentication, Stage.AUTHENTICATED)
    assert authentication.session == ("alice", None)


def test_a_mechanism_that_is_not_enabled_fails() -> None:
    authentication = machine()
    with pytest.raises(UnknownMechanismError):
        authentication.handshake("THREE")
    check_stage(authentication, Stage.FAILED)
    with pytest.raises(LoginError):
        authentication.handshake("ONE")


def test_a_token_without_a_handshake_fails() -> None:
    authentication = machine(Accepted("alice"))
    assert isinstance(say(authentication), Refused)
    check_stage(authentication, Stage.FAILED)


def test_a_second_handshake_during_a_login_fails() -> None:
    authentication = machine(Challenge(b"who"))
    authentication.handshake("ONE")
    say(authentication)
    with pytest.raises(LoginError):
        authentication.handshake("ONE")
    check_stage(authentication, Stage.FAILED)


def test_nothing_follows_a_refusal() -> None:
    authentication = machine(Refused("wrong"), Accepted("alice"))
    authentication.handshake("ONE")
    assert isinstance(say(authentication), Refused)
    assert isinstance(say(authentication), Refused)
    check_stage(authentication, Stage.FAILED)
    assert authentication.session is None


def test_a_session_lasts_as_long_as_the_shorter_of_what_was_shown_and_what_is_allowed() -> None:
    for shown, allowed, expected in [
        (None, None, None),
        (1060.0, None, 60.0),
        (None, 30.0, 30.0),
        (1060.0, 30.0, 30.0),
    ]:
        authentication = machine(Accepted("alice", expires_at_s=shown), max_session_s=allowed)
        authentication.handshake("ONE")
        say(authentication)
        assert authentication.session == ("alice", expected)


def test_what_has_expired_already_is_refused() -> None:
    authentication = machine(Accepted("alice", expires_at_s=999.0))
    authentication.handshake("ONE")
    assert isinstance(say(authentication), Refused)
    check_stage(authentication, Stage.FAILED)


def test_a_session_that_has_ended_needs_another_login() -> None:
    time = Time()
    authentication = machine(Accepted("alice"), max_session_s=30.0, time=time)
    authentication.handshake("ONE")
    say(authentication)
    time.now += 31
    authentication.expire()
    check_stage(authentication, Stage.EXPIRED)
    authentication.handshake("ONE")
    assert isinstance(say(authentication), Accepted)
    check_stage(authentication, Stage.AUTHENTICATED)
    assert authentication.has_logged_in_again


def test_logging_in_again_too_soon_leaves_the_session_as_it_is() -> None:
    authentication = machine(Accepted("alice"))
    authentication.handshake("ONE")
    say(authentication)
    with pytest.raises(TooSoonError):
        authentication.handshake("ONE")
    check_stage(authentication, Stage.AUTHENTICATED)


def test_another_mechanism_cannot_be_used_to_log_in_again() -> None:
    time = Time()
    authentication = machine(Accepted("alice"), time=time)
    authentication.handshake("ONE")
    say(authentication)
    time.now += 2
    with pytest.raises(LoginError):
        authentication.handshake("TWO")
    check_stage(authentication, Stage.FAILED)


def test_a_client_cannot_log_in_again_as_another_user() -> None:
    time, users = Time(), iter(["alice", "root"])
    authentication = Authentication({"ONE": lambda: Scripted(Accepted(next(users)))}, None, time, time)
    authentication.handshake("ONE")
    say(authentication)
    time.now += 2
    authentication.handshake("ONE")
    assert isinstance(say(authentication), Refused)
    check_stage(authentication, Stage.FAILED)
