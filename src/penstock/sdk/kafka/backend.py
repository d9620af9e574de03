"""The backend of a cluster: brokers of Penstock, or of anything else that speaks the Kafka protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaException

from penstock.clock import SystemClock
from penstock.sdk.backend import PartitionListener
from penstock.sdk.kafka.connection import ConnectionSettings
from penstock.sdk.kafka.group_consumer import KafkaGroupConsumer
from penstock.sdk.kafka.librdkafka import settings_error
from penstock.sdk.kafka.partition_listener import KafkaPartitionListener
from penstock.sdk.kafka.producer import KafkaProducer
from penstock.sdk.kafka.settings import producer_settings, transactional_settings
from penstock.sdk.kafka.timer_reader import read_timers
from penstock.sdk.kafka.topic_admin import TopicAdmin
from penstock.sdk.kafka.transaction_committer import KafkaTransactionCommitter
from penstock.sdk.kafka.transactional_producer import KafkaTransactionalProducer
from penstock.sdk.ports import Received
from penstock.sdk.receive.subscription_options import ValidatedOptions
from penstock.sdk.send.observed_producer import SendObserver
from penstock.sdk.send.sending_options import Sending
from penstock.sdk.timers import TimerQuery, WaitingMessage


class KafkaBackend:
    """Makes the parts of a client that use librdkafka."""

    def __init__(self, bootstrap: str, client_id: str | None, settings: Mapping[str, Any] | None) -> None:
        connection = ConnectionSettings(bootstrap, settings={} if settings is None else settings)
        self._connection = connection if client_id is None else replace(connection, client_id=client_id)
        self._clock = SystemClock()
        self.topics = TopicAdmin(self._connection)

    @property
    def client_id(self) -> str:
        return self._connection.client_id

    @property
    def is_away(self) -> bool:
        return self._connection.availability.is_away

    def producer(self, sending: Sending, *, endless: bool = False) -> KafkaProducer:
        settings = self._connection.settings_for(producer_settings(sending, endless=endless))
        try:
            return KafkaProducer(settings, self._clock)
        except KafkaException as error:
            raise settings_error(error) from None

    def transactional_producer(self, sending: Sending, name: str) -> KafkaTransactionalProducer:
        settings = self._connection.settings_for(transactional_settings(sending, name))
        return KafkaTransactionalProducer(settings, sending.patience_ms / 1000, self._clock)

    def group_consumer(self, options: ValidatedOptions) -> KafkaGroupConsumer:
        return KafkaGroupConsumer(self._connection, options)

    def committer(self, group: str, observer: SendObserver) -> KafkaTransactionCommitter:
        return KafkaTransactionCommitter(self._connection, group, observer)

    def listen(self, topic: str, partition: int, on_message: Callable[[Received], None]) -> PartitionListener:
        return KafkaPartitionListener(self._connection, topic, partition, on_message)

    def read_timers(self, query: TimerQuery) -> list[WaitingMessage]:
        return read_timers(self._connection, query)

    def close(self) -> None:
        self._connection.availability.close()
