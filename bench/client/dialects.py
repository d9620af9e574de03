"""The protocols by name."""

from __future__ import annotations

from bench.client.amqp import AmqpDialect
from bench.client.driver import Dialect
from bench.client.kafka import KafkaDialect
from bench.client.nats import NatsDialect
from bench.client.redis import RedisDialect


def dialect(name: str, ca_file: str = "") -> Dialect:
    """The protocol called `name`, through TLS if there is somebody to trust; Kafka's alone can be had so."""
    known: dict[str, Dialect] = {
        "kafka": KafkaDialect(ca_file),
        "amqp": AmqpDialect(),
        "nats": NatsDialect(),
        "redis": RedisDialect(),
    }
    return known[name]
