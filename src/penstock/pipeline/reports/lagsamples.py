"""How far groups are behind, as brokers tell it now: a sample, to be kept with those of other times."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.ids import TopicPartition
from penstock.pipeline.failure import PipelineError
from penstock.pipeline.topics.kafka import TIMEOUT_S, Brokers, quiet, reason_of

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka.admin import AdminClient

# Groups that no consumer is a member of: they remember what was written already.
_NOT_CONSUMERS = ("penstock-spark.", "penstock-replay.")


def sample(kafka: Mapping[str, str], topics: Collection[str], now: datetime) -> pa.Table:
    """Where every group stands in each partition of the topics that it has committed an offset for."""
    import pyarrow as pa
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient(quiet(kafka))
    try:
        committed = {group: _committed(client, group, topics) for group in _groups(client)}
    except KafkaException as error:
        raise PipelineError(f"groups cannot be looked up: {reason_of(error)}") from None
    partitions = sorted({at for each in committed.values() for at in each})
    ends = Brokers(kafka).end_offsets(partitions, committed=False)
    rows = [
        {
            "at": now,
            "group": group,
            "topic": at.topic,
            "partition": at.partition,
            "committed": offset,
            "end": ends[at],
            "lag": max(0, ends[at] - offset),
        }
        for group, each in sorted(committed.items())
        for at, offset in sorted(each.items())
    ]
    return pa.Table.from_pylist(rows, _schema())


def _groups(client: AdminClient) -> list[str]:
    listed: Any = client.list_consumer_groups(request_timeout=TIMEOUT_S).result()
    return sorted(each.group_id for each in listed.valid if not each.group_id.startswith(_NOT_CONSUMERS))


def _committed(client: AdminClient, group: str, topics: Collection[str]) -> dict[TopicPartition, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=TIMEOUT_S)
    found = asked[group].result().topic_partitions or []
    return {
        TopicPartition(each.topic, each.partition): each.offset
        for each in found
        if each.error is None and each.offset >= 0 and each.topic in topics
    }


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("group", pa.string()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("committed", pa.int64()),
            ("end", pa.int64()),
            ("lag", pa.int64()),
        ]
    )
