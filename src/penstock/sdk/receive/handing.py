"""A message in hand: which partition it is from, each time that it is handed to a handler, and who sees to its end."""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from penstock.ids import TopicPartition
from penstock.sdk.message import Message, Reply, Verdict
from penstock.sdk.ports import Received
from penstock.sdk.receive.collecting import Collected
from penstock.sdk.receive.forwarding import Fate, Later
from penstock.sdk.receive.settling import Ledger


class Tenure:
    """One partition, from the moment it is ours until it is not."""

    __slots__ = ("entries", "ledger", "place")

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.ledger = Ledger()
        self.entries: set[Entry] = set()
        """In hand."""

    @property
    def is_busy(self) -> bool:
        """Whether a handler, or somebody after it, is at work on one of them."""
        return any(entry.is_out for entry in self.entries)


class Entry:
    """One message from when it is received until it is settled, or its partition is lost."""

    __slots__ = ("is_concluded", "is_ended", "is_out", "lane", "later", "offset", "received", "tenure", "token")

    def __init__(self, received: Received, tenure: Tenure, lane: Hashable, token: str) -> None:
        self.received = received
        """As it is handed out next: tried again here, it has other headers."""
        self.offset = received.offset
        self.tenure = tenure
        self.lane = lane
        self.token = token
        """Under which its business id is claimed."""
        self.is_out = False
        """Handed to a handler, and not back in a lane."""
        self.is_ended = False
        """Its handler has returned."""
        self.is_concluded = False
        """What was said of it has been seen to."""
        self.later: Later | None = None
        """It is tried again here."""


class Teller(Protocol):
    """Takes what handlers say."""

    def said(self, handout: Handout, verdict: Verdict) -> None: ...

    def extend(self, handout: Handout, by_ms: int) -> None: ...


class Handout:
    """A message in the hands of a handler, once. One that is tried again here has another, so old verbs are known."""

    __slots__ = ("_teller", "began_ms", "deadline_ms", "entry", "has_claim", "is_settled", "message", "sends")

    def __init__(self, entry: Entry, teller: Teller, reply: Reply | None, sends: Collected | None) -> None:
        self.entry = entry
        self._teller = teller
        self.sends = sends
        self.message = Message(entry.received, self, reply, sends)
        self.is_settled = False
        self.has_claim = False
        self.began_ms = 0.0
        self.deadline_ms: float | None = None
        """None until the handler is called."""

    def settle(self, verdict: Verdict) -> None:
        self._teller.said(self, verdict)

    def extend(self, by_ms: int) -> None:
        self._teller.extend(self, by_ms)


class Cancellable(Protocol):
    """A call that may be ended early."""

    def cancel(self) -> object: ...


@dataclass(eq=False, slots=True)
class Job:
    """One call of a handler."""

    handouts: list[Handout]
    call: Cancellable | None = field(default=None)
    """None where nothing can end it, as in a thread."""


class Ending(Protocol):
    """How messages begin and end: one by one, in transactions, or committed beforehand."""

    is_transactional: bool
    outlives_tenure: bool
    """Whether messages are handled although their partition is somebody else's by now."""

    @property
    def needs_polling(self) -> bool:
        """Whether something waits for an answer that comes inside `Inbox.poll`."""
        ...

    def arrived(self, entries: Sequence[Entry]) -> None:
        """Sees to it that they are queued, now or later. Under no lock."""

    def end(self, handout: Handout, verdict: Verdict, fate: Fate) -> None:
        """Sees to it that the message is settled. Under no lock."""

    def forget(self, tenures: Set[Tenure], are_lost: bool) -> None:
        """Nothing of these is handed out any more; if they are lost, nothing of them ends. Under the engine's lock."""
