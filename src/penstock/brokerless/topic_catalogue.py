"""Topics of a store that keeps a catalogue of them, which many processes use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from penstock.brokerless.store import StoreAwayError, StoreRefusedError
from penstock.brokerless.topic_entries import TopicEntry, new_topic
from penstock.sdk.backend import AS_BACKEND_SAYS, Topics, TopicShape
from penstock.sdk.errors import TopicError


class TopicCatalogue(Topics, ABC):
    """Looks up and creates topics. Thread-safe. Topics are never removed, so what was found once is remembered."""

    def __init__(self, default_partitions: int, numbers: Mapping[str, int] | None = None) -> None:
        """`numbers` has the store's own settings of topics with their least values."""
        self._default_partitions = default_partitions
        self._numbers = numbers or {}
        self._known: dict[str, TopicEntry] = {}

    @abstractmethod
    def all(self) -> dict[str, TopicEntry]:
        """Every topic. Raises `StoreAwayError`."""

    @abstractmethod
    def _find(self, topic: str) -> TopicEntry | None:
        """Raises `StoreAwayError` and `StoreRefusedError`."""

    @abstractmethod
    def _insert(self, topic: str, entry: TopicEntry) -> bool:
        """False if the topic is there. Raises `StoreAwayError` and `StoreRefusedError`."""

    def entry(self, topic: str) -> TopicEntry | None:
        """Raises `StoreAwayError`."""
        found = self._known.get(topic)
        if found is None:
            found = self._find(topic)
            if found is not None:
                self._known[topic] = found
        return found

    def shape(self, topic: str) -> TopicShape | None:
        try:
            found = self.entry(topic)
        except (StoreAwayError, StoreRefusedError) as error:
            raise TopicError(f"could not look up topic {topic}: {error}") from None
        return None if found is None else TopicShape(found.partitions, 1)

    def create(
        self,
        topic: str,
        partitions: int = AS_BACKEND_SAYS,
        replicas: int = AS_BACKEND_SAYS,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        entry = new_topic(topic, partitions, config, self._numbers, self._default_partitions)
        if entry.view_of is not None:
            entry = TopicEntry(self.partitions(entry.view_of), entry.settings)
        try:
            return self._insert(topic, entry)
        except (StoreAwayError, StoreRefusedError) as error:
            raise TopicError(f"could not create topic {topic}: {error}") from None
