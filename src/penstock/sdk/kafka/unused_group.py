"""Reading without a group.

librdkafka demands the name of a group of every consumer and looks for its coordinator, also of one that joins nothing
and commits nothing. A user who may read the topic need not be allowed that group: what is said of it is no failure.
"""

from __future__ import annotations

from confluent_kafka import KafkaError


def concerns_unused_group(error: KafkaError) -> bool:
    """Whether an error that came in place of a message is only about the group."""
    return error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
