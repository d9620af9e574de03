"""Sends delayed messages through a delay bridge, for clusters that do not delay messages themselves."""

from __future__ import annotations

from dataclasses import replace

from penstock.sdk.headers import TIMING, value_of
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.ports import Outgoing
from penstock.sdk.send.outgoing_message import check_topic

TARGET = "penstock-target"
"""On a message in a delay topic: the topic that it goes to when it is due."""
TARGET_PARTITION = "penstock-target-partition"
"""The partition of that topic, as digits; without it the key decides."""


class DelayBridge(Hooks):
    """Redirects messages with a delay, a schedule or a timer id, and cancels, to the topic that a delay bridge reads.

    All others go straight to their topic. Retries of subscriptions are delayed messages too, so they work the same way.

    Example:
        ```python
        client = penstock.Client("kafka:9092", hooks=[DelayBridge("delays")])
        client.send("orders", b"close 7", key="7", delay="30m")  # `penstock delay-bridge delays` sends it to `orders`
        ```
    """

    def __init__(self, topic: str) -> None:
        """Choose the delay topic.

        Args:
            topic: The topic that `penstock delay-bridge` reads.

        Raises:
            InvalidInputError: It is not a topic name.
        """
        check_topic(topic)
        self._topic = topic

    def sending(self, outgoing: Outgoing) -> Outgoing:
        """Redirect a message that asks for a delay."""
        if outgoing.topic == self._topic or not any(name in TIMING for name, _ in outgoing.headers):
            return outgoing
        headers = outgoing.headers
        if value_of(headers, TARGET) is None:
            headers = (*headers, (TARGET, outgoing.topic.encode()))
        if outgoing.partition is not None:
            headers = (*headers, (TARGET_PARTITION, str(outgoing.partition).encode()))
        return replace(outgoing, topic=self._topic, partition=None, headers=headers)
