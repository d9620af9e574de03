"""Metadata, DescribeCluster and DescribeTopicPartitions over a real controller and tree."""

from __future__ import annotations

import pytest

from penstock.broker.handlers.cluster import ClusterHandlers
from penstock.broker.handlers.topic_partitions import TopicPartitionsHandlers
from penstock.broker.requests.context import RequestContext
from penstock.cluster.decisions.database_groups import GroupChange
from penstock.cluster.decisions.topics import ReplicaAssignment, TopicCreation, TopicRules
from penstock.cluster.metadata import BrokerInfo, DatabaseServer, ListenerEndpoint
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.broker import BrokerSettings, Limits
from penstock.errors import Code
from penstock.ids import NO_TOPIC_ID, BrokerId, TopicId, new_topic_id
from penstock.protocol import apis
from penstock.protocol.messages.describe_cluster import CONTROLLERS, DescribeClusterRequest
from penstock.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from penstock.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from support import callers
from support.tree import Tree, register

BROKER = BrokerId(1)
NOT_ASKED = -(2**31)


@pytest.fixture
async def metadata(tree: Tree) -> MetadataChanges:
    metadata = MetadataChanges(tree, MetadataSettings("cluster", BROKER, TopicRules(default_partitions=2)))
    await metadata.start()
    await register(metadata, BrokerInfo(BROKER, "127.0.0.1", 19092, "rack-a"))
    await metadata.create_topics([TopicCreation("a", 1), TopicCreation("b", 3), TopicCreation("c", 2)])
    return metadata


def handlers_of(metadata: MetadataChanges, *, creating: bool = True, topics_per_request: int = 100) -> ClusterHandlers:
    return ClusterHandlers(
        metadata, BrokerSettings(auto_create_topics=creating), Limits(topics_per_request=topics_per_request)
    )


@pytest.fixture
def handlers(metadata: MetadataChanges) -> ClusterHandlers:
    return handlers_of(metadata)


def context(version: int) -> RequestContext:
    return RequestContext(version, callers.client())


def named(*names: str, create: bool = False, operations: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=name) for name in names),
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=operations,
    )


def by_id(*ids: TopicId) -> MetadataRequest:
    return MetadataRequest(topics=tuple(MetadataRequestTopic(topic_id=id) for id in ids))


def outcome(response: MetadataResponse) -> list[tuple[str | None, int, int]]:
    return [(topic.name, topic.error_code, len(topic.partitions)) for topic in response.topics]


@pytest.fixture
async def three(metadata: MetadataChanges) -> MetadataChanges:
    """Brokers of which one has two listeners, one has one of them, and one is of a version without names."""
    await register(metadata, BrokerInfo(BrokerId(3), "old", 9092))
    inner = (ListenerEndpoint("INTERNAL", "inner", 9192),)
    await register(metadata, BrokerInfo(BrokerId(2), "inner", 9192, endpoints=inner, inter_broker_listener="INTERNAL"))
    both = (ListenerEndpoint("CLIENT", "public", 9092), ListenerEndpoint("INTERNAL", "private", 9192))
    await register(metadata, BrokerInfo(BROKER, "public", 9092, endpoints=both, inter_broker_listener="INTERNAL"))
    await metadata.create_topics([TopicCreation("on-two", assignments=(ReplicaAssignment(0, (BrokerId(2),)),))])
    return metadata


def through(listener: str, version: int = 12) -> RequestContext:
    return RequestContext(version, callers.client(listener=listener))


async def test_producers_are_told_no_leader_of_what_their_database_does_not_take(tree: Tree) -> None:
    metadata = MetadataChanges(tree, MetadataSettings("cluster", BROKER, TopicRules(default_partitions=2)))
    await metadata.start()
    endpoints = (ListenerEndpoint("CLIENT", "127.0.0.1", 19092),)
    info = BrokerInfo(BROKER, "127.0.0.1", 19092, endpoints=endpoints, has_shared_storage=True, database_key="the key")
    await register(metadata, info)
    servers = GroupChange(servers=(DatabaseServer("mysql://u@h:1/d"),), key="the key")
    assert await metadata.alter_database_groups({"second": servers}) == {"second": None}
    stored = {"penstock.storage": "sql"}
    await metadata.create_topics([TopicCreation("files", 1), TopicCreation("tables", 2, overrides=stored)])
    away: set[str] = set()
    handlers = ClusterHandlers(metadata, BrokerSettings(), Limits(), lambda: frozenset(away))
    producer, consumer = through("CLIENT"), through("CLIENT")
    producer.caller.has_produced = True

    async def leaders(context: RequestContext) -> dict[tuple[str | None, str], tuple[int, int]]:
        answer = await handlers.metadata(named("files", "tables"), context)
        images = metadata.image.topics
        return {
            (topic.name, images[topic.name or ""].partitions[each.partition_index].database): (
                each.leader_id,
                each.error_code,
            )
            for topic in answer.topics
            for each in topic.partitions
        }

    led, lost = (BROKER, Code.NONE), (-1, Code.LEADER_NOT_AVAILABLE)
    every = {("files", "default"): led, ("tables", "default"): led, ("tables", "second"): led}
    assert await leaders(producer) == await leaders(consumer) == every
    away.add("second")
    assert await leaders(producer) == {**every, ("tables", "second"): lost}
    assert await leaders(consumer) == every
    away.add("default")
    # What is in files is in no database.
    assert await leaders(producer) == {**every, ("tables", "second"): lost, ("tables", "default"): lost}
    away.clear()
    assert await leaders(producer) == every


class TestListeners:
    @pytest.mark.parametrize(
        ("listener", "found"),
        [
            ("CLIENT", [(1, "public", 9092), (3, "old", 9092)]),
            ("INTERNAL", [(1, "private", 9192), (2, "inner", 9192), (3, "old", 9092)]),
        ],
    )
    async def test_a_client_is_told_the_brokers_of_the_listener_it_came_through(
        self, three: MetadataChanges, listener: str, found: list[tuple[int, str, int]]
    ) -> None:
        handlers = handlers_of(three)
        for _ in range(2):  # the second answer is a kept one
            answer = await handlers.metadata(MetadataRequest(topics=()), through(listener))
            assert sorted((each.node_id, each.host, each.port) for each in answer.brokers) == found
        described = await handlers.describe_cluster(DescribeClusterRequest(), through(listener))
        assert sorted((each.broker_id, each.host, each.port) for each in described.brokers) == found

    @pytest.mark.parametrize(("version", "code"), [(5, Code.LEADER_NOT_AVAILABLE), (6, Code.LISTENER_NOT_FOUND)])
    async def test_a_leader_without_that_listener_is_not_told(
        self, three: MetadataChanges, version: int, code: Code
    ) -> None:
        handlers = handlers_of(three)
        for listener, expected in (("CLIENT", (code, -1)), ("INTERNAL", (Code.NONE, 2))):
            answer = await handlers.metadata(named("on-two"), through(listener, version))
            ((partition,),) = (topic.partitions for topic in answer.topics)
            assert (partition.error_code, partition.leader_id) == expected
            assert (partition.replica_nodes, partition.offline_replicas) == ((2,), ())

    async def test_a_controller_without_that_listener_is_not_told(self, three: MetadataChanges) -> None:
        handlers = handlers_of(three)
        answer = await handlers.metadata(MetadataRequest(topics=()), through("OTHER"))
        assert three.image.controller == BROKER
        assert ([each.node_id for each in answer.brokers], answer.controller_id) == ([3], -1)


class TestMetadata:
    async def test_it_names_brokers_cluster_and_controller(self, handlers: ClusterHandlers) -> None:
        response = await handlers.metadata(MetadataRequest(topics=()), context(12))
        (broker,) = response.brokers
        assert (broker.node_id, broker.host, broker.port, broker.rack) == (1, "127.0.0.1", 19092, "rack-a")
        assert (response.cluster_id, response.controller_id) == ("cluster", 1)
        assert response.topics == ()

    async def test_a_topic_is_shown_with_id_and_partitions(
        self, handlers: ClusterHandlers, metadata: MetadataChanges
    ) -> None:
        response = await handlers.metadata(named("b"), context(12))
        (topic,) = response.topics
        assert topic.topic_id == metadata.image.topics["b"].id
        assert not topic.is_internal
        assert [
            (one.partition_index, one.leader_id, one.leader_epoch, one.replica_nodes, one.isr_nodes)
            for one in topic.partitions
        ] == [(index, 1, 0, (1,), (1,)) for index in range(3)]

    @pytest.mark.parametrize(
        ("version", "topics", "names"),
        [
            (0, (), ["a", "b", "c"]),
            (1, (), []),
            (1, None, ["a", "b", "c"]),
            (12, None, ["a", "b", "c"]),
            (12, (), []),
        ],
    )
    async def test_all_topics_are_asked_for_by_null_or_in_version_zero_by_nothing(
        self,
        handlers: ClusterHandlers,
        version: int,
        topics: tuple[MetadataRequestTopic, ...] | None,
        names: list[str],
    ) -> None:
        response = await handlers.metadata(MetadataRequest(topics=topics), context(version))
        assert [topic.name for topic in response.topics] == names
        apis.encode_response(apis.METADATA, version, 1, response)

    async def test_a_topic_named_twice_is_answered_once(self, handlers: ClusterHandlers) -> None:
        assert outcome(await handlers.metadata(named("a", "a"), context(12))) == [("a", 0, 1)]

    async def test_topics_are_found_by_id(self, handlers: ClusterHandlers, metadata: MetadataChanges) -> None:
        unknown = new_topic_id()
        response = await handlers.metadata(by_id(metadata.image.topics["b"].id, unknown), context(12))
        assert outcome(response) == [("b", 0, 3), (None, Code.UNKNOWN_TOPIC_ID, 0)]
        assert response.topics[1].topic_id == unknown
        apis.encode_response(apis.METADATA, 12, 1, response)

    @pytest.mark.parametrize("version", [10, 11])
    async def test_ids_are_refused_in_versions_that_do_not_have_them(
        self, handlers: ClusterHandlers, metadata: MetadataChanges, version: int
    ) -> None:
        request = by_id(metadata.image.topics["b"].id)
        assert outcome(await handlers.metadata(request, context(12))) == [("b", 0, 3)]
        response = await handlers.metadata(request, context(version))
        assert outcome(response) == [("", Code.INVALID_REQUEST, 0)]
        apis.encode_response(apis.METADATA, version, 1, response)

    async def test_operations_are_shown_only_when_asked_for(self, handlers: ClusterHandlers) -> None:
        plain = await handlers.metadata(named("a"), context(10))
        assert plain.topics[0].topic_authorized_operations == NOT_ASKED
        assert plain.cluster_authorized_operations == NOT_ASKED
        asked = await handlers.metadata(
            MetadataRequest(
                topics=None,
                include_cluster_authorized_operations=True,
                include_topic_authorized_operations=True,
            ),
            context(10),
        )
        assert {topic.topic_authorized_operations for topic in asked.topics} == {3576}
        assert asked.cluster_authorized_operations == 8096

    async def test_too_many_topics_are_refused_and_none_created(self, metadata: MetadataChanges) -> None:
        handlers = handlers_of(metadata, topics_per_request=1)
        response = await handlers.metadata(named("x", "y", create=True), context(12))
        assert outcome(response) == [("x", Code.INVALID_REQUEST, 0), ("y", Code.INVALID_REQUEST, 0)]
        assert "x" not in metadata.image.topics

    @pytest.mark.parametrize("version", range(14))
    async def test_every_version_can_be_answered(self, handlers: ClusterHandlers, version: int) -> None:
        response = await handlers.metadata(named("a", "no-such"), context(version))
        apis.encode_response(apis.METADATA, version, 1, response)


class TestCreationOnDemand:
    async def test_a_missing_topic_is_created_and_can_be_used_at_once(
        self, handlers: ClusterHandlers, metadata: MetadataChanges
    ) -> None:
        response = await handlers.metadata(named("new", "a", create=True), context(12))
        assert outcome(response) == [("new", 0, 2), ("a", 0, 1)]
        assert response.topics[0].topic_id == metadata.image.topics["new"].id != NO_TOPIC_ID

    @pytest.mark.parametrize(("setting", "allowed"), [(False, True), (True, False), (False, False)])
    async def test_it_takes_both_the_setting_and_the_request(
        self, metadata: MetadataChanges, setting: bool, allowed: bool
    ) -> None:
        handlers = handlers_of(metadata, creating=setting)
        response = await handlers.metadata(named("new", create=allowed), context(12))
        assert outcome(response) == [("new", Code.UNKNOWN_TOPIC_OR_PARTITION, 0)]
        assert "new" not in metadata.image.topics

    @pytest.mark.parametrize("create", [True, False])
    async def test_a_bad_name_is_told_apart_from_a_missing_topic(self, handlers: ClusterHandlers, create: bool) -> None:
        response = await handlers.metadata(named("bad name", create=create), context(12))
        assert outcome(response) == [("bad name", Code.INVALID_TOPIC_EXCEPTION, 0)]

    async def test_a_name_that_collides_is_refused(self, handlers: ClusterHandlers) -> None:
        response = await handlers.metadata(named("x.y", "x_y", create=True), context(12))
        assert outcome(response) == [("x.y", 0, 2), ("x_y", Code.INVALID_TOPIC_EXCEPTION, 0)]

    async def test_internal_topics_are_not_made_by_asking_for_them(
        self, handlers: ClusterHandlers, metadata: MetadataChanges
    ) -> None:
        response = await handlers.metadata(named("__consumer_offsets", create=True), context(12))
        assert outcome(response) == [("__consumer_offsets", Code.UNKNOWN_TOPIC_OR_PARTITION, 0)]
        assert response.topics[0].is_internal
        assert "__consumer_offsets" not in metadata.image.topics

    async def test_an_unknown_id_creates_nothing(self, handlers: ClusterHandlers, metadata: MetadataChanges) -> None:
        before = metadata.image
        await handlers.metadata(by_id(new_topic_id()), context(12))
        assert metadata.image is before

    async def test_a_topic_that_could_not_be_written_is_unknown_and_works_later(
        self, handlers: ClusterHandlers, tree: Tree
    ) -> None:
        tree.is_broken = True
        response = await handlers.metadata(named("new", "a", create=True), context(12))
        assert outcome(response) == [("new", Code.UNKNOWN_TOPIC_OR_PARTITION, 0), ("a", 0, 1)]
        tree.is_broken = False
        assert outcome(await handlers.metadata(named("new", create=True), context(12))) == [("new", 0, 2)]


class TestKeptAnswers:
    async def test_the_same_question_gets_the_same_answer_until_the_image_changes(
        self, handlers: ClusterHandlers, metadata: MetadataChanges
    ) -> None:
        first = await handlers.metadata(named("a"), context(12))
        assert await handlers.metadata(named("a"), context(13)) is first
        assert await handlers.metadata(named("b"), context(12)) is not first
        await metadata.create_topics([TopicCreation("d")])
        second = await handlers.metadata(named("a"), context(12))
        assert second is not first
        assert second == first
        assert await handlers.metadata(named("a"), context(12)) is second

    async def test_a_missing_topic_is_looked_for_every_time(
        self, handlers: ClusterHandlers, metadata: MetadataChanges
    ) -> None:
        request = named("new")
        assert outcome(await handlers.metadata(request, context(12))) == [("new", Code.UNKNOWN_TOPIC_OR_PARTITION, 0)]
        await metadata.create_topics([TopicCreation("new")])
        assert outcome(await handlers.metadata(request, context(12))) == [("new", 0, 2)]

    async def test_nothing_asked_for_means_all_only_in_version_zero_also_from_memory(
        self, handlers: ClusterHandlers
    ) -> None:
        request = MetadataRequest(topics=())
        for _ in range(2):
            assert len((await handlers.metadata(request, context(0))).topics) == 3
            assert len((await handlers.metadata(request, context(1))).topics) == 0

    async def test_many_different_questions_are_all_answered(self, handlers: ClusterHandlers) -> None:
        for number in range(600):
            request = named(*("abc"[index] for index in range(3) if number >> index & 1), create=bool(number & 8))
            response = await handlers.metadata(request, context(12))
            assert [topic.name for topic in response.topics] == [
                "abc"[index] for index in range(3) if number >> index & 1
            ]


class TestDescribeCluster:
    async def test_it_describes_the_brokers(self, handlers: ClusterHandlers) -> None:
        response = await handlers.describe_cluster(DescribeClusterRequest(), context(1))
        (broker,) = response.brokers
        assert (broker.broker_id, broker.host, broker.port, broker.rack) == (1, "127.0.0.1", 19092, "rack-a")
        assert (response.error_code, response.cluster_id, response.controller_id) == (0, "cluster", 1)
        assert response.cluster_authorized_operations == NOT_ASKED
        for version in range(apis.DESCRIBE_CLUSTER.max_version + 1):
            apis.encode_response(apis.DESCRIBE_CLUSTER, version, 1, response)

    async def test_operations_are_shown_when_asked_for(self, handlers: ClusterHandlers) -> None:
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        assert (await handlers.describe_cluster(request, context(1))).cluster_authorized_operations == 8096

    @pytest.mark.parametrize(("endpoint", "code"), [(CONTROLLERS, 114), (0, 115), (9, 115)])
    async def test_only_brokers_are_described_here(self, handlers: ClusterHandlers, endpoint: int, code: int) -> None:
        response = await handlers.describe_cluster(DescribeClusterRequest(endpoint_type=endpoint), context(1))
        assert response.error_code == code
        assert response.error_message
        apis.encode_response(apis.DESCRIBE_CLUSTER, 1, 1, response)


class TestDescribeTopicPartitions:
    @pytest.fixture
    def pages(self, metadata: MetadataChanges) -> TopicPartitionsHandlers:
        return TopicPartitionsHandlers(metadata)

    async def ask(
        self,
        pages: TopicPartitionsHandlers,
        *names: str,
        limit: int = 2000,
        cursor: tuple[str, int] | None = None,
    ) -> DescribeTopicPartitionsResponse:
        response = await pages.describe_topic_partitions(
            DescribeTopicPartitionsRequest(
                topics=tuple(TopicRequest(name=name) for name in names),
                response_partition_limit=limit,
                cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
            ),
            context(0),
        )
        apis.encode_response(apis.DESCRIBE_TOPIC_PARTITIONS, 0, 1, response)
        return response

    @staticmethod
    def shown(response: DescribeTopicPartitionsResponse) -> list[tuple[str | None, int, list[int]]]:
        return [
            (topic.name, topic.error_code, [one.partition_index for one in topic.partitions])
            for topic in response.topics
        ]

    async def test_all_topics_come_by_name(self, pages: TopicPartitionsHandlers, metadata: MetadataChanges) -> None:
        response = await self.ask(pages)
        assert self.shown(response) == [("a", 0, [0]), ("b", 0, [0, 1, 2]), ("c", 0, [0, 1])]
        assert response.next_cursor is None
        assert response.topics[0].topic_id == metadata.image.topics["a"].id
        assert response.topics[0].topic_authorized_operations == 3576

    async def test_named_topics_come_by_name_and_missing_ones_with_their_error(
        self, pages: TopicPartitionsHandlers
    ) -> None:
        response = await self.ask(pages, "c", "no-such", "a", "bad name", "a")
        assert self.shown(response) == [
            ("a", 0, [0]),
            ("bad name", Code.INVALID_TOPIC_EXCEPTION, []),
            ("c", 0, [0, 1]),
            ("no-such", Code.UNKNOWN_TOPIC_OR_PARTITION, []),
        ]

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 100, 0, -5])
    async def test_pages_of_any_size_make_up_the_whole(self, pages: TopicPartitionsHandlers, limit: int) -> None:
        seen: list[tuple[str | None, int]] = []
        cursor: tuple[str, int] | None = None
        for _ in range(10):
            response = await self.ask(pages, limit=limit, cursor=cursor)
            part = [(name, index) for name, _, indexes in self.shown(response) for index in indexes]
            assert 0 < len(part) <= max(limit, 1)
            seen += part
            if response.next_cursor is None:
                break
            cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)
        assert seen == [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1)]

    async def test_a_cursor_at_a_deleted_topic_goes_on_with_the_next(
        self, pages: TopicPartitionsHandlers, metadata: MetadataChanges
    ) -> None:
        await metadata.delete_topics(["b"])
        assert self.shown(await self.ask(pages, cursor=("b", 1))) == [("c", 0, [0, 1])]

    @pytest.mark.parametrize("cursor", [("c", 0), ("a", -1)])
    async def test_a_cursor_that_does_not_fit_is_refused(
        self, pages: TopicPartitionsHandlers, cursor: tuple[str, int]
    ) -> None:
        response = await self.ask(pages, "a", "b", cursor=cursor)
        assert self.shown(response) == [("a", Code.INVALID_REQUEST, []), ("b", Code.INVALID_REQUEST, [])]

    async def test_a_cursor_past_the_last_partition_shows_none_of_that_topic(
        self, pages: TopicPartitionsHandlers
    ) -> None:
        assert self.shown(await self.ask(pages, cursor=("b", 9))) == [("b", 0, []), ("c", 0, [0, 1])]
