"""From subscriptions and the cluster's topics to the target assignment of a consumer group."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

from penstock.cluster.metadata import MetadataImage
from penstock.groups.consumer.assignors import ASSIGNORS, Plan, Subscriber
from penstock.groups.consumer.members import ConsumerMember
from penstock.groups.consumer.pattern import Pattern, PatternError
from penstock.groups.consumer.state import ConsumerState
from penstock.groups.pause import Pause
from penstock.ids import TopicId

_MAX_PATTERNS = 100
"""Expressions whose meaning is remembered."""


Subscription = tuple[tuple[str, ...], str | None]
"""Names, and an expression."""


class Topics:
    """The topics that a group subscribes to; caches what expressions match in one metadata image."""

    def __init__(self) -> None:
        self._version = -1
        self._patterns: dict[str, Pattern] = {}
        self._found: dict[str, frozenset[str]] = {}

    def of_all(self, state: ConsumerState, image: MetadataImage) -> frozenset[str]:
        """The names that members read, of topics that exist or not."""
        return frozenset().union(*(self._of(each, image) for each in set(map(_subscription, state.members.values()))))

    def hash_of(self, state: ConsumerState, image: MetadataImage, pause: Pause) -> int:
        """Differs if the topics that the group reads do: their ids, their partitions, which of them are paused."""
        names = sorted(self.of_all(state, image) & image.topics.keys())
        if not names:
            return 0
        seen = [topic for name in names if (topic := image.seen(name)) is not None]
        facts = [f"{topic.name}/{topic.id}/{len(topic.partitions)}" for topic in seen]
        facts += [f"paused/{name}" for name in names if pause.holds(name)]
        return int.from_bytes(blake2b("\n".join(facts).encode(), digest_size=8).digest(), "big", signed=True)

    def plan(self, state: ConsumerState, image: MetadataImage, pause: Pause, assignor: str) -> Plan:
        """Which member is to read what; paused topics are assigned to none."""
        read: dict[Subscription, frozenset[TopicId]] = {}
        partitions: dict[TopicId, int] = {}
        for subscription in set(map(_subscription, state.members.values())):
            names = [name for name in self._of(subscription, image) if not pause.holds(name)]
            topics = [topic for name in names if (topic := image.seen(name)) is not None]
            partitions |= {topic.id: len(topic.partitions) for topic in topics}
            read[subscription] = frozenset(topic.id for topic in topics)
        subscribers = [
            Subscriber(member_id, member.instance_id, read[_subscription(member)], state.target_of(member_id))
            for member_id, member in state.members.items()
        ]
        return ASSIGNORS[assignor](subscribers, partitions)

    def _of(self, subscription: Subscription, image: MetadataImage) -> frozenset[str]:
        names, pattern = subscription
        return frozenset(names) | self._named_by(pattern, image)

    def _named_by(self, pattern: str | None, image: MetadataImage) -> frozenset[str]:
        if not pattern:
            return frozenset()
        if image.version != self._version or len(self._found) >= _MAX_PATTERNS:
            self._version = image.version
            self._patterns = {text: self._patterns[text] for text in self._found if text in self._patterns}
            self._found.clear()
        if pattern not in self._found:
            self._found[pattern] = self._find(pattern, image)
        return self._found[pattern]

    def _find(self, pattern: str, image: MetadataImage) -> frozenset[str]:
        try:
            compiled = self._patterns[pattern] = self._patterns.get(pattern) or Pattern(pattern)
        except PatternError:
            return frozenset()  # of a time when more could be written
        return frozenset(
            name for name, topic in image.topics.items() if not topic.is_internal and compiled.matches(name)
        )


def _subscription(member: ConsumerMember) -> Subscription:
    return member.topics, member.pattern


def chosen_assignor(state: ConsumerState, configured: tuple[str, ...]) -> str:
    """The assignor that most members ask for; among equals, or if none asks, the one named first in the settings."""
    votes = Counter(member.assignor for member in state.members.values() if member.assignor in configured)
    return max(configured, key=lambda name: votes[name])
