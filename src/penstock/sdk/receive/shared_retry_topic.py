"""Moves messages of the shared retry topic to the retry topic of their own subscription.

Each topic of a group has its own retry topic, which only members that read the topic read. Version 0.1 had one retry
topic for the whole group. Any member can receive what is left there; a member without a subscription to the topic of
such a message moves it to that topic's retry topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.sdk.errors import ClientError
from penstock.sdk.message import Failed, HandlerResult, Message, Misrouted
from penstock.sdk.receive.topic_layout import RetryTopic, TopicLayout

log = logging.getLogger(__name__)


class SharedRetryRouter:
    """The router of one subscription."""

    def __init__(self, group: str, layout: TopicLayout, retry_topic: Callable[[str, str], RetryTopic]) -> None:
        """`retry_topic` returns the retry topic of a group for a topic, and creates it if necessary; it may block."""
        self._group = group
        self._layout = layout
        self._retry_topic = retry_topic
        self._known: dict[str, RetryTopic] = {}

    def is_foreign(self, message: Message) -> bool:
        return self._layout.foreign_topic(message.received) is not None

    def route(self, message: Message) -> HandlerResult:
        """The result for a message of another subscription. Blocks."""
        topic = self._layout.foreign_topic(message.received)
        assert topic is not None
        try:
            if topic not in self._known:
                self._known[topic] = self._retry_topic(self._group, topic)
                log.info(
                    "group %s: moving retries of %s from %s to %s, for a subscription to that topic",
                    self._group,
                    topic,
                    message.received.topic,
                    self._known[topic].name,
                )
        except ClientError as error:
            return Failed(f"could not move it to the subscription to {topic}: {error}", counts_as_attempt=False)
        found = self._known[topic]
        return Misrouted(found.name, found.partitions)
