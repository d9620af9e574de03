"""What can be said about a subscription."""

from __future__ import annotations

from typing import Required, TypedDict

from penstock.durations import Duration
from penstock.sdk.receive.dedup import Dedup
from penstock.sdk.receive.plan import Delivery
from penstock.sdk.receive.retries import Retries


class Terms(TypedDict, total=False):
    """The parameters of `subscribe` beside its topics and its handler; all but `group` may be left out."""

    group: Required[str]
    """Who subscribes: each message is handled by one member of each group."""
    retries: Retries | None
    """How often a message is tried, and how long is waited in between."""
    deadline: Duration
    """A message that is not settled after that counts as failed."""
    concurrency: int
    """Handlers at the same time: threads, in `penstock.aio` tasks."""
    in_flight: int | None
    """Messages handed out at most."""
    rate: float | None
    """Messages a second at most."""
    batch: int | None
    """The handler gets a list of up to so many messages."""
    ordered: bool
    """Messages of one key are handled one after the other; one that fails holds up its key only."""
    dedup: Dedup | None
    """Messages of the same business id are handled once."""
    tags: str | None
    """An expression: only messages that have such tags come."""
    delivery: Delivery
    from_beginning: bool
    """Where a new group begins: with what is there, or with what comes."""
