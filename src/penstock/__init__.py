"""Penstock: a message queue that Kafka clients take for Kafka."""

__version__ = "0.1.0"
