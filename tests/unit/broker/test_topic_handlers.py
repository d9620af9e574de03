"""CreateTopics, DeleteTopics and CreatePartitions over a real controller and tree."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.broker.config_descriptions import ConfigDescriptions
from penstock.broker.handlers.topics import TopicHandlers
from penstock.broker.requests.client_limits import ClientLimits
from penstock.broker.requests.context import RequestContext
from penstock.clock import ManualClock
from penstock.cluster.decisions.topics import TopicCreation
from penstock.cluster.metadata import BrokerInfo, MetadataImage
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.broker import BrokerSettings, Limits
from penstock.config.loader import load
from penstock.config.quotas import QuotaSettings
from penstock.errors import Code
from penstock.ids import NO_TOPIC_ID, BrokerId, new_topic_id
from penstock.protocol import apis
from penstock.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from penstock.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from penstock.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicState,
)
from penstock.replication.replicas import Replicas
from support import callers
from support.tree import Tree, register

BROKER = BrokerId(1)


@pytest.fixture
async def metadata(tree: Tree) -> MetadataChanges:
    metadata = MetadataChanges(tree, MetadataSettings("cluster", BROKER))
    await metadata.start()
    await register(metadata, BrokerInfo(BROKER, "127.0.0.1", 9092))
    return metadata


@pytest.fixture
def image(metadata: MetadataChanges) -> MetadataImage:
    return metadata.image


def handlers_of(
    metadata: MetadataChanges,
    replicas: Replicas,
    *,
    deletion: bool = True,
    topics_per_request: int = 100,
    quotas: ClientLimits | None = None,
) -> TopicHandlers:
    return TopicHandlers(
        metadata,
        BrokerSettings(delete_topics=deletion),
        Limits(topics_per_request=topics_per_request),
        ConfigDescriptions(load(None, {}, {})),
        quotas or ClientLimits(QuotaSettings(), ManualClock().monotonic_ms),
        replicas,
    )


@pytest.fixture
def handlers(metadata: MetadataChanges, replicas: Replicas) -> TopicHandlers:
    return handlers_of(metadata, replicas)


def context(version: int = 6) -> RequestContext:
    return RequestContext(version, callers.client())


def topic(name: str, partitions: int = -1, factor: int = -1, **configs: str | None) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=tuple(CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()),
    )


async def make(handlers: TopicHandlers, *names: str) -> None:
    response = await handlers.create_topics(CreateTopicsRequest(topics=tuple(topic(name) for name in names)), context())
    assert all(result.error_code == 0 for result in response.topics)


class TestCreateTopics:
    async def test_a_created_topic_is_described(self, handlers: TopicHandlers, metadata: MetadataChanges) -> None:
        response = await handlers.create_topics(
            CreateTopicsRequest(topics=(topic("orders", 3, retention_ms="05"),)), context()
        )
        (result,) = response.topics
        assert result.topic_id == metadata.image.topics["orders"].id
        assert (result.error_code, result.error_message) == (0, None)
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        configs = {config.name: config for config in result.configs or ()}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
        assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("1073741824", 5)
        for version in range(apis.CREATE_TOPICS.min_version, apis.CREATE_TOPICS.max_version + 1):
            apis.encode_response(apis.CREATE_TOPICS, version, 1, response)

    async def test_each_topic_is_answered_for_itself_in_order(
        self, handlers: TopicHandlers, metadata: MetadataChanges
    ) -> None:
        await make(handlers, "old")
        response = await handlers.create_topics(
            CreateTopicsRequest(
                topics=(
                    topic("new"),
                    topic("old"),
                    topic("bad name"),
                    topic("too-many", factor=2),
                    topic("twice"),
                    topic("twice"),
                    topic("config", no_such="1"),
                    topic("null", retention_ms=None),
                )
            ),
            context(),
        )
        assert [(result.name, result.error_code) for result in response.topics] == [
            ("new", Code.NONE),
            ("old", Code.TOPIC_ALREADY_EXISTS),
            ("bad name", Code.INVALID_TOPIC_EXCEPTION),
            ("too-many", Code.INVALID_REPLICATION_FACTOR),
            ("twice", Code.INVALID_REQUEST),
            ("config", Code.INVALID_CONFIG),
            ("null", Code.INVALID_CONFIG),
        ]
        assert response.topics[1].error_message == "Topic 'old' already exists."
        assert sorted(metadata.image.topics) == ["new", "old"]

    async def test_assignments_are_followed(self, handlers: TopicHandlers, metadata: MetadataChanges) -> None:
        assigned = CreatableTopic(
            name="a",
            num_partitions=-1,
            replication_factor=-1,
            assignments=tuple(CreatableReplicaAssignment(partition_index=index, broker_ids=(1,)) for index in range(2)),
        )
        response = await handlers.create_topics(CreateTopicsRequest(topics=(assigned,)), context())
        assert response.topics[0].num_partitions == 2
        assert len(metadata.image.topics["a"].partitions) == 2

    async def test_validating_creates_nothing(self, handlers: TopicHandlers, metadata: MetadataChanges) -> None:
        response = await handlers.create_topics(
            CreateTopicsRequest(topics=(topic("a", 4), topic("b", 0)), validate_only=True), context()
        )
        assert [(result.error_code, result.num_partitions) for result in response.topics] == [
            (Code.NONE, 4),
            (Code.INVALID_PARTITIONS, -1),
        ]
        assert dict(metadata.image.topics) == {}

    async def test_too_many_topics_are_refused_together(self, metadata: MetadataChanges, replicas: Replicas) -> None:
        handlers = handlers_of(metadata, replicas, topics_per_request=1)
        response = await handlers.create_topics(CreateTopicsRequest(topics=(topic("a"), topic("b"))), context())
        assert [result.error_code for result in response.topics] == [Code.INVALID_REQUEST] * 2
        assert dict(metadata.image.topics) == {}

    async def test_a_change_that_cannot_be_written_is_answered_and_logged_with_the_reason(
        self, handlers: TopicHandlers, tree: Tree, caplog: pytest.LogCaptureFixture
    ) -> None:
        tree.is_broken = True
        response = await handlers.create_topics(CreateTopicsRequest(topics=(topic("a"),)), context())
        assert response.topics[0].error_code == Code.UNKNOWN_SERVER_ERROR
        assert "the disk is full" in (response.topics[0].error_message or "")
        (said,) = caplog.records
        assert (said.levelname, said.getMessage(), said.exc_info) == (
            "WARNING",
            "cannot commit a metadata change",
            None,
        )
        assert vars(said)["fields"] == {"reason": "the disk is full"}


class TestDeleteTopics:
    async def delete(
        self,
        handlers: TopicHandlers,
        *asked: str | UUID | DeleteTopicState,
        version: int = 6,
    ) -> list[tuple[str | None, UUID, int]]:
        states = tuple(
            DeleteTopicState(name=one)
            if isinstance(one, str)
            else DeleteTopicState(topic_id=one)
            if isinstance(one, UUID)
            else one
            for one in asked
        )
        response = await handlers.delete_topics(DeleteTopicsRequest(topics=states, timeout_ms=1000), context(version))
        apis.encode_response(apis.DELETE_TOPICS, 6, 1, response)
        return [(result.name, result.topic_id, result.error_code) for result in response.responses]

    async def test_topics_go_by_name_and_by_id(self, handlers: TopicHandlers, metadata: MetadataChanges) -> None:
        await make(handlers, "a", "b", "c")
        a, b = (metadata.image.topics[name].id for name in "ab")
        assert await self.delete(handlers, "a", b) == [("a", a, 0), ("b", b, 0)]
        assert list(metadata.image.topics) == ["c"]

    async def test_old_requests_name_topics(self, handlers: TopicHandlers, metadata: MetadataChanges) -> None:
        await make(handlers, "a")
        response = await handlers.delete_topics(
            DeleteTopicsRequest(topic_names=("a", "b"), timeout_ms=1000), context(1)
        )
        assert [(result.name, result.error_code) for result in response.responses] == [
            ("a", Code.NONE),
            ("b", Code.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        for version in range(apis.DELETE_TOPICS.min_version, apis.DELETE_TOPICS.max_version + 1):
            apis.encode_response(apis.DELETE_TOPICS, version, 1, response)
        assert dict(metadata.image.topics) == {}

    async def test_what_cannot_be_meant_is_refused_and_the_rest_goes(
        self, handlers: TopicHandlers, metadata: MetadataChanges
    ) -> None:
        await make(handlers, "a", "b", "c", "d")
        ids = {name: image.id for name, image in metadata.image.topics.items()}
        unknown = new_topic_id()
        results = await self.delete(
            handlers,
            "a",
            "no-such",
            unknown,
            DeleteTopicState(),
            DeleteTopicState(name="b", topic_id=ids["b"]),
            "c",
            "c",
            "d",
            ids["d"],
        )
        assert results == [
            ("a", ids["a"], Code.NONE),
            ("no-such", NO_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION),
            (None, unknown, Code.UNKNOWN_TOPIC_ID),
            (None, NO_TOPIC_ID, Code.INVALID_REQUEST),
            ("b", ids["b"], Code.INVALID_REQUEST),
            ("c", NO_TOPIC_ID, Code.INVALID_REQUEST),
            ("d", NO_TOPIC_ID, Code.INVALID_REQUEST),
            (None, ids["d"], Code.INVALID_REQUEST),
        ]
        assert sorted(metadata.image.topics) == ["b", "c", "d"]

    @pytest.mark.parametrize(("version", "code"), [(2, Code.INVALID_REQUEST), (3, Code.TOPIC_DELETION_DISABLED)])
    async def test_deletion_can_be_disabled(
        self, metadata: MetadataChanges, replicas: Replicas, version: int, code: Code
    ) -> None:
        handlers = handlers_of(metadata, replicas, deletion=False)
        await make(handlers, "a")
        assert await self.delete(handlers, "a", version=version) == [("a", NO_TOPIC_ID, code)]
        assert list(metadata.image.topics) == ["a"]

    async def test_too_many_topics_are_refused_together(self, metadata: MetadataChanges, replicas: Replicas) -> None:
        handlers = handlers_of(metadata, replicas, topics_per_request=1)
        await make(handlers, "a")
        assert [code for *_, code in await self.delete(handlers, "a", "b")] == [Code.INVALID_REQUEST] * 2
        assert list(metadata.image.topics) == ["a"]

    async def test_a_deletion_that_cannot_be_written_leaves_the_topic(
        self, handlers: TopicHandlers, metadata: MetadataChanges, tree: Tree
    ) -> None:
        await make(handlers, "a")
        tree.is_broken = True
        ((_, _, code),) = await self.delete(handlers, "a")
        assert code == Code.UNKNOWN_SERVER_ERROR
        assert list(metadata.image.topics) == ["a"]


class TestCreatePartitions:
    async def grow(
        self, handlers: TopicHandlers, *topics: CreatePartitionsTopic, validate_only: bool = False
    ) -> list[tuple[str, int]]:
        response = await handlers.create_partitions(
            CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only), context(3)
        )
        for version in range(apis.CREATE_PARTITIONS.min_version, apis.CREATE_PARTITIONS.max_version + 1):
            apis.encode_response(apis.CREATE_PARTITIONS, version, 1, response)
        return [(result.name, result.error_code) for result in response.results]

    async def test_each_topic_is_answered_for_itself(self, handlers: TopicHandlers, metadata: MetadataChanges) -> None:
        await make(handlers, "a", "b", "c", "d")
        two = (CreatePartitionsAssignment(broker_ids=(1,)), CreatePartitionsAssignment(broker_ids=(1,)))
        results = await self.grow(
            handlers,
            CreatePartitionsTopic(name="a", count=3),
            CreatePartitionsTopic(name="b", count=3, assignments=two),
            CreatePartitionsTopic(name="c", count=2, assignments=two),
            CreatePartitionsTopic(name="d", count=1),
            CreatePartitionsTopic(name="no-such", count=3),
            CreatePartitionsTopic(name="twice", count=3),
            CreatePartitionsTopic(name="twice", count=4),
        )
        assert results == [
            ("a", Code.NONE),
            ("b", Code.NONE),
            ("c", Code.INVALID_REPLICA_ASSIGNMENT),
            ("d", Code.INVALID_PARTITIONS),
            ("no-such", Code.UNKNOWN_TOPIC_OR_PARTITION),
            ("twice", Code.INVALID_REQUEST),
        ]
        counts = {name: len(topic.partitions) for name, topic in metadata.image.topics.items()}
        assert counts == {"a": 3, "b": 3, "c": 1, "d": 1}

    async def test_validating_adds_nothing(self, handlers: TopicHandlers, metadata: MetadataChanges) -> None:
        await make(handlers, "a")
        asked = CreatePartitionsTopic(name="a", count=3)
        assert await self.grow(handlers, asked, validate_only=True) == [("a", Code.NONE)]
        assert len(metadata.image.topics["a"].partitions) == 1

    async def test_too_many_topics_are_refused_together(self, metadata: MetadataChanges, replicas: Replicas) -> None:
        handlers = handlers_of(metadata, replicas, topics_per_request=1)
        await make(handlers, "a")
        asked = (CreatePartitionsTopic(name="a", count=3), CreatePartitionsTopic(name="b", count=3))
        assert [code for _, code in await self.grow(handlers, *asked)] == [Code.INVALID_REQUEST] * 2
        assert len(metadata.image.topics["a"].partitions) == 1


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
async def test_internal_topics_are_made_by_brokers_alone(
    handlers: TopicHandlers, metadata: MetadataChanges, name: str
) -> None:
    response = await handlers.create_topics(CreateTopicsRequest(topics=(topic(name, 1), topic("a"))), context())
    by_name = {found.name: found for found in response.topics}
    assert by_name[name].error_code == Code.INVALID_REQUEST
    assert by_name[name].error_message == f"Creation of internal topic {name} is prohibited."
    assert by_name["a"].error_code == 0
    assert name not in metadata.image.topics


async def test_internal_topics_do_not_get_more_partitions(handlers: TopicHandlers, metadata: MetadataChanges) -> None:
    await metadata.create_topics([TopicCreation("__consumer_offsets", 4)])
    more = CreatePartitionsTopic(name="__consumer_offsets", count=8, assignments=None)
    response = await handlers.create_partitions(CreatePartitionsRequest(topics=(more,), timeout_ms=0), context(3))
    assert [found.error_code for found in response.results] == [Code.INVALID_REQUEST]
    assert len(metadata.image.topics["__consumer_offsets"].partitions) == 4
