"""What the two sides of a login say to each other, whatever the mechanism: messages in, steps out.

A mechanism takes the client's messages one after the other. Each gives a step: the next challenge, or the end. Work
that takes longer than the event loop can spare is a step too: the shell does it in a thread, and gets the step behind
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class LoginError(Exception):
    """A login went wrong; the text has no secret in it and is for the log, not for the client."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client has to answer this."""

    message: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is this user."""

    user: str
    message: bytes = b""
    """The last one for the client."""
    expires_at_s: float | None = None
    """When what the client showed ends, in wall time."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The login failed."""

    reason: str
    """For the log; the client learns nothing that helps to guess."""
    user: str | None = None
    """The user that the client claims to be."""


@dataclass(frozen=True, slots=True)
class Later:
    """`work` gives the step; it is done in a thread."""

    work: Callable[[], Challenge | Accepted | Refused]


Step = Challenge | Accepted | Refused | Later


class Exchange(Protocol):
    """The broker's side of one login."""

    def step(self, message: bytes) -> Step: ...


class ClientExchange(Protocol):
    """The client's side of one login."""

    def respond(self, challenge: bytes | None) -> bytes | None:
        """The next message, the first one for None; None if there is none any more. LoginError if the server is not
        what it says.
        """
        ...
