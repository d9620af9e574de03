"""What a handler may know about a request beyond its fields."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.broker.requests.sliced_work import Work
from penstock.net.caller import Caller


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The request's version, and who sent it."""

    version: int
    caller: Caller
    # A handler that may take long goes through it.
    work: Work = field(default_factory=Work)
