"""Reads one partition from its end on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Position

from penstock.sdk.errors import TopicError
from penstock.sdk.kafka.connection import ConnectionSettings
from penstock.sdk.kafka.librdkafka import reason_of, received_of
from penstock.sdk.ports import Received

_POLL_S = 0.1
_REQUEST_TIMEOUT_S = 30.0


class KafkaPartitionListener:
    """Reads one partition from its end on, until it is closed."""

    def __init__(
        self, connection: ConnectionSettings, topic: str, partition: int, on_message: Callable[[Received], None]
    ) -> None:
        self._on_message = on_message
        self._is_closed = False
        self._consumer = Consumer(connection.settings_for(_consumer_settings(connection)))
        try:
            self._begin(Position(topic, partition))
        except BaseException:
            self._consumer.close()
            raise
        self._thread = threading.Thread(target=self._run, name="penstock-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()

    def _begin(self, tp: Position) -> None:
        try:
            _, end = self._consumer.get_watermark_offsets(tp, timeout=_REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise TopicError(f"could not read topic {tp.topic}: {reason_of(error)}") from None
        self._consumer.assign([Position(tp.topic, tp.partition, end)])

    def _run(self) -> None:
        while not self._is_closed:
            message = self._consumer.poll(_POLL_S)
            if message is not None and message.error() is None:
                self._on_message(received_of(message))
        self._consumer.close()


def _consumer_settings(connection: ConnectionSettings) -> dict[str, Any]:
    """librdkafka requires a group id, but the consumer joins no group."""
    return {
        "group.id": connection.client_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # What retention has deleted is gone; continue with new messages.
        "auto.offset.reset": "latest",
    }
