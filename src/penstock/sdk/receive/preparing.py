"""Makes the topics that a subscription needs and are not there: what it reads, for retries, for dead letters, and the
views of its tags.
"""

from __future__ import annotations

from penstock.sdk.errors import TopicError
from penstock.sdk.names import dead_topic, retry_topic, view_of
from penstock.sdk.receive.forwarding import Layout
from penstock.sdk.receive.plan import Plan
from penstock.sdk.topics import Topics, TopicShape

VIEW_OF = "penstock.view.of"
VIEW_TAGS = "penstock.view.tags"


class KafkaPreparation:
    """Nothing that is there already is changed."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def prepare(self, plan: Plan) -> Layout:
        shapes = [self._shape(topic) for topic in plan.topics]
        read = plan.topics if plan.tags is None else tuple(self._view(topic, plan.tags) for topic in plan.topics)
        largest = max(shapes, key=lambda shape: (shape.partitions, shape.replicas))
        retry, dead = retry_topic(plan.group), dead_topic(plan.group)
        return Layout(read, retry, dead, self._made(retry, largest), self._made(dead, largest))

    def _shape(self, topic: str) -> TopicShape:
        """Of a topic that is made, as brokers make them, if it is not there: else its first messages would be noticed
        when the library looks for new topics the next time.
        """
        shape = self._topics.shape(topic)
        if shape is None:
            self._topics.make(topic)
            shape = self._topics.shape(topic)
        if shape is None:
            raise TopicError(f"topic {topic} was made and is not there")
        return shape

    def _made(self, topic: str, like: TopicShape) -> int:
        """How many partitions it has."""
        if self._topics.shape(topic) is None:
            self._topics.make(topic, like.partitions, like.replicas)
        return self._topics.partitions(topic)

    def _view(self, topic: str, tags: str) -> str:
        view = view_of(topic, tags)
        if self._topics.shape(view) is None:
            self._topics.make(view, config={VIEW_OF: topic, VIEW_TAGS: tags})
        return view
