"""The topics of a subscription: those it reads, its retry, dead-letter and view topics, and their creation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.sdk.backend import Topics, TopicShape
from penstock.sdk.errors import TopicError
from penstock.sdk.headers import origin_of
from penstock.sdk.ports import Received
from penstock.sdk.receive.subscription_options import ValidatedOptions
from penstock.sdk.topic_names import dead_topic, retry_topic, shared_retry_topic, view_of

VIEW_OF = "penstock.view.of"
VIEW_TAGS = "penstock.view.tags"


@dataclass(frozen=True, slots=True)
class RetryTopic:
    """A topic in which messages wait for their next attempt."""

    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """The topics of a subscription as they exist in the cluster."""

    retries: Mapping[str, RetryTopic]
    """The topics or views that are read, each with its retry topic."""
    dead: str
    dead_partitions: int
    shared_retry: RetryTopic | None = None
    """The retry topic of the whole group that version 0.1 left, if it exists."""
    views: Mapping[str, str] = field(default_factory=dict)
    """For a topic that is read through a view: the view."""

    @property
    def topics(self) -> tuple[str, ...]:
        """What is read, apart from retry topics."""
        return tuple(self.retries)

    @property
    def retry_topics(self) -> tuple[str, ...]:
        own = [each.name for each in self.retries.values()]
        return tuple(own if self.shared_retry is None else [*own, self.shared_retry.name])

    def retry_topic_of(self, received: Received) -> RetryTopic:
        """Where a failed message goes."""
        if (found := self.retries.get(received.topic)) is not None:
            return found
        for each in self.retries.values():
            if each.name == received.topic:
                return each
        # From the shared retry topic; without an origin it has to stay there.
        assert self.shared_retry is not None and self.shared_retry.name == received.topic
        return self._own_retry_topic(received) or self.shared_retry

    def foreign_topic(self, received: Received) -> str | None:
        """The topic of another subscription that a message of the shared retry topic belongs to."""
        if self.shared_retry is None or received.topic != self.shared_retry.name:
            return None
        origin = origin_of(received.headers)
        return None if origin is None or self._own_retry_topic(received) is not None else origin.topic

    def _own_retry_topic(self, received: Received) -> RetryTopic | None:
        origin = origin_of(received.headers)
        return None if origin is None else self.retries.get(self.views.get(origin.topic, origin.topic))


class TopicProvisioner:
    """Creates the missing topics of subscriptions; never changes existing ones."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def provision(self, options: ValidatedOptions) -> TopicLayout:
        shapes = {topic: self._existing_or_created(topic) for topic in options.topics}
        views = {} if options.tags is None else {topic: self._view(topic, options.tags) for topic in options.topics}
        retries = {}
        for topic, shape in shapes.items():
            read = views.get(topic, topic)
            name = retry_topic(options.group, read)
            retries[read] = RetryTopic(name, self._partitions_of(name, shape))
        dead = dead_topic(options.group)
        largest = max(shapes.values(), key=lambda shape: (shape.partitions, shape.replicas))
        return TopicLayout(retries, dead, self._partitions_of(dead, largest), self._shared_retry(options.group), views)

    def retry_topic(self, group: str, topic: str) -> RetryTopic:
        """The retry topic of another topic that the group reads or has read; created if it does not exist."""
        name = retry_topic(group, topic)
        shape = self._topics.shape(topic)
        if shape is None:
            # The topic was deleted: keep its retries for a later subscription.
            shape = self._topics.shape(shared_retry_topic(group)) or TopicShape(1, 1)
        return RetryTopic(name, self._partitions_of(name, shape))

    def _shared_retry(self, group: str) -> RetryTopic | None:
        name = shared_retry_topic(group)
        shape = self._topics.shape(name)
        return None if shape is None else RetryTopic(name, shape.partitions)

    def _existing_or_created(self, topic: str) -> TopicShape:
        """Creates the topic if it does not exist: otherwise librdkafka would notice its first messages only at the next
        metadata refresh.
        """
        shape = self._topics.shape(topic)
        if shape is None:
            self._topics.create(topic)
            shape = self._topics.shape(topic)
        if shape is None:
            raise TopicError(f"topic {topic} was created but does not exist")
        return shape

    def _partitions_of(self, topic: str, same_as: TopicShape) -> int:
        """The partition count of a topic, created like another one if it does not exist."""
        if self._topics.shape(topic) is None:
            self._topics.create(topic, same_as.partitions, same_as.replicas)
        return self._topics.partitions(topic)

    def _view(self, topic: str, tags: str) -> str:
        view = view_of(topic, tags)
        if self._topics.shape(view) is None:
            self._topics.create(view, config={VIEW_OF: topic, VIEW_TAGS: tags})
        return view
