"""DescribeTopicPartitions: topics in pages of partitions, in the order of their names (KIP-966)."""

from __future__ import annotations

from collections.abc import Collection

from penstock.broker.handlers.cluster import TOPIC_OPERATIONS, code_of_missing
from penstock.broker.requests.context import RequestContext
from penstock.cluster import timer_topics
from penstock.cluster.metadata import INTERNAL_TOPICS, NO_LEADER, TopicImage
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

# Partitions in one page, whatever the client asks for: Kafka's default.
PAGE_PARTITIONS_MAX = 2000


class TopicPartitionsHandlers:
    """Answers requests that read the topics page by page."""

    def __init__(self, metadata: MetadataChanges) -> None:
        self._metadata = metadata

    async def describe_topic_partitions(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> DescribeTopicPartitionsResponse:
        image = self._metadata.image
        topics = image.topics
        cursor = request.cursor
        asked = {topic.name for topic in request.topics}
        if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
            return _refused(request)
        first = "" if cursor is None else cursor.topic_name
        names = sorted(name for name in asked or topics if name >= first)
        room = max(min(request.response_partition_limit, PAGE_PARTITIONS_MAX), 1)
        page: list[DescribeTopicPartitionsResponseTopic] = []
        async for name in context.work.over(names):
            if room == 0:
                return _page(page, Cursor(topic_name=name, partition_index=0))
            topic = image.seen(name) or timer_topics.seen(image, name)
            if topic is None:
                page.append(_missing(name))
                continue
            start = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
            end = min(start + room, len(topic.partitions))
            page.append(_part_of(topic, start, end, image.alive))
            if end < len(topic.partitions):
                return _page(page, Cursor(topic_name=name, partition_index=end))
            room -= max(end - start, 0)
        return _page(page, None)


def _page(
    topics: list[DescribeTopicPartitionsResponseTopic], next_cursor: Cursor | None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=next_cursor)


def _refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    # The response has no error of its own, so every topic carries it, as in Kafka.
    return _page(
        [
            DescribeTopicPartitionsResponseTopic(error_code=Code.INVALID_REQUEST, name=topic.name)
            for topic in request.topics
        ],
        None,
    )


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=code_of_missing(name),
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _part_of(
    topic: TopicImage, start: int, end: int, alive: Collection[BrokerId]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=tuple(
            DescribeTopicPartitionsResponsePartition(
                error_code=Code.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else Code.NONE,
                partition_index=partition.index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.in_sync,
                offline_replicas=tuple(broker for broker in partition.replicas if broker not in alive),
                eligible_leader_replicas=(),
                last_known_elr=(),
            )
            for partition in topic.partitions[start:end]
        ),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
