"""What both stubs have for the test, beside what they have for the application."""

from __future__ import annotations

from penstock.clock import ManualClock
from penstock.sdk.message import Message
from penstock.sdk.names import dead_topic
from penstock.testing.core import StubCore


class Looking:
    """Looks into the topics of a stub."""

    _stub: StubCore

    @property
    def clock(self) -> ManualClock:
        """Hand it to what shall live in the same time: `MemoryStore(clock=stub.clock)`."""
        return self._stub.clock

    def messages(self, topic: str) -> list[Message]:
        """What is in a topic, oldest first; what waits for its time is not there yet."""
        self._stub.topics.make(topic)
        found = self._stub.topics.messages(topic)
        return [Message(each) for each in sorted(found, key=lambda each: each.timestamp_ms or 0)]

    def pending(self, topic: str) -> list[tuple[int, bytes | None]]:
        """What waits for its time in a topic, by due time: milliseconds from now, and the value."""
        now_ms = self.clock.now_ms()
        return [(each.due_ms - now_ms, each.outgoing.value) for each in self._stub.topics.pending(topic)]

    def dead_letters(self, group: str) -> list[Message]:
        """The messages that a group has given up."""
        return self.messages(dead_topic(group))
