"""Metadata, DescribeCluster and DescribeTopicPartitions over a real controller and tree."""

from __future__ import annotations

import pytest

from penstock.broker.context import RequestContext
from penstock.broker.handlers.cluster import ClusterHandlers
from penstock.broker.handlers.pages import PageHandlers
from penstock.cluster.controller import Controller, ControllerSettings
from penstock.cluster.metadata import BrokerInfo
from penstock.cluster.topics import NewTopic, TopicRules
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
from support.tree import Tree, register

BROKER = BrokerId(1)
NOT_ASKED = -(2**31)


@pytest.fixture
async def controller(tree: Tree) -> Controller:
    controller = Controller(tree, ControllerSettings("cluster", BROKER, TopicRules(default_partitions=2)))
    await controller.start()
    await register(controller, BrokerInfo(BROKER, "127.0.0.1", 19092, "rack-a"))
    await controller.create_topics([NewTopic("a", 1), NewTopic("b", 3), NewTopic("c", 2)])
    return controller


def handlers_of(controller: Controller, *, creating: bool = True, topics_per_request: int = 100) -> ClusterHandlers:
    return ClusterHandlers(
        controller, BrokerSettings(auto_create_topics=creating), Limits(topics_per_request=topics_per_request)
    )


@pytest.fixture
def handlers(controller: Controller) -> ClusterHandlers:
    return handlers_of(controller)


def context(version: int) -> RequestContext:
    return RequestContext(version, "test", "127.0.0.1")


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


class TestMetadata:
    async def test_it_names_brokers_cluster_and_controller(self, handlers: ClusterHandlers) -> None:
        response = await handlers.metadata(MetadataRequest(topics=()), context(12))
        (broker,) = response.brokers
        assert (broker.node_id, broker.host, broker.port, broker.rack) == (1, "127.0.0.1", 19092, "rack-a")
        assert (response.cluster_id, response.controller_id) == ("cluster", 1)
        assert response.topics == ()

    async def test_a_topic_is_shown_with_id_and_partitions(
        self, handlers: ClusterHandlers, controller: Controller
    ) -> None:
        response = await handlers.metadata(named("b"), context(12))
        (topic,) = response.topics
        assert topic.topic_id == controller.image.topics["b"].id
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

    async def test_topics_are_found_by_id(self, handlers: ClusterHandlers, controller: Controller) -> None:
        unknown = new_topic_id()
        response = await handlers.metadata(by_id(controller.image.topics["b"].id, unknown), context(12))
        assert outcome(response) == [("b", 0, 3), (None, Code.UNKNOWN_TOPIC_ID, 0)]
        assert response.topics[1].topic_id == unknown
        apis.encode_response(apis.METADATA, 12, 1, response)

    @pytest.mark.parametrize("version", [10, 11])
    async def test_ids_are_refused_in_versions_that_do_not_have_them(
        self, handlers: ClusterHandlers, controller: Controller, version: int
    ) -> None:
        request = by_id(controller.image.topics["b"].id)
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

    async def test_too_many_topics_are_refused_and_none_created(self, controller: Controller) -> None:
        handlers = handlers_of(controller, topics_per_request=1)
        response = await handlers.metadata(named("x", "y", create=True), context(12))
        assert outcome(response) == [("x", Code.INVALID_REQUEST, 0), ("y", Code.INVALID_REQUEST, 0)]
        assert "x" not in controller.image.topics

    @pytest.mark.parametrize("version", range(14))
    async def test_every_version_can_be_answered(self, handlers: ClusterHandlers, version: int) -> None:
        response = await handlers.metadata(named("a", "no-such"), context(version))
        apis.encode_response(apis.METADATA, version, 1, response)


class TestCreationOnDemand:
    async def test_a_missing_topic_is_created_and_can_be_used_at_once(
        self, handlers: ClusterHandlers, controller: Controller
    ) -> None:
        response = await handlers.metadata(named("new", "a", create=True), context(12))
        assert outcome(response) == [("new", 0, 2), ("a", 0, 1)]
        assert response.topics[0].topic_id == controller.image.topics["new"].id != NO_TOPIC_ID

    @pytest.mark.parametrize(("setting", "allowed"), [(False, True), (True, False), (False, False)])
    async def test_it_takes_both_the_setting_and_the_request(
        self, controller: Controller, setting: bool, allowed: bool
    ) -> None:
        handlers = handlers_of(controller, creating=setting)
        response = await handlers.metadata(named("new", create=allowed), context(12))
        assert outcome(response) == [("new", Code.UNKNOWN_TOPIC_OR_PARTITION, 0)]
        assert "new" not in controller.image.topics

    @pytest.mark.parametrize("create", [True, False])
    async def test_a_bad_name_is_told_apart_from_a_missing_topic(self, handlers: ClusterHandlers, create: bool) -> None:
        response = await handlers.metadata(named("bad name", create=create), context(12))
        assert outcome(response) == [("bad name", Code.INVALID_TOPIC_EXCEPTION, 0)]

    async def test_a_name_that_collides_is_refused(self, handlers: ClusterHandlers) -> None:
        response = await handlers.metadata(named("x.y", "x_y", create=True), context(12))
        assert outcome(response) == [("x.y", 0, 2), ("x_y", Code.INVALID_TOPIC_EXCEPTION, 0)]

    async def test_internal_topics_are_not_made_by_asking_for_them(
        self, handlers: ClusterHandlers, controller: Controller
    ) -> None:
        response = await handlers.metadata(named("__consumer_offsets", create=True), context(12))
        assert outcome(response) == [("__consumer_offsets", Code.UNKNOWN_TOPIC_OR_PARTITION, 0)]
        assert response.topics[0].is_internal
        assert "__consumer_offsets" not in controller.image.topics

    async def test_an_unknown_id_creates_nothing(self, handlers: ClusterHandlers, controller: Controller) -> None:
        before = controller.image
        await handlers.metadata(by_id(new_topic_id()), context(12))
        assert controller.image is before

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
        self, handlers: ClusterHandlers, controller: Controller
    ) -> None:
        first = await handlers.metadata(named("a"), context(12))
        assert await handlers.metadata(named("a"), context(13)) is first
        assert await handlers.metadata(named("b"), context(12)) is not first
        await controller.create_topics([NewTopic("d")])
        second = await handlers.metadata(named("a"), context(12))
        assert second is not first
        assert second == first
        assert await handlers.metadata(named("a"), context(12)) is second

    async def test_a_missing_topic_is_looked_for_every_time(
        self, handlers: ClusterHandlers, controller: Controller
    ) -> None:
        request = named("new")
        assert outcome(await handlers.metadata(request, context(12))) == [("new", Code.UNKNOWN_TOPIC_OR_PARTITION, 0)]
        await controller.create_topics([NewTopic("new")])
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
    def pages(self, controller: Controller) -> PageHandlers:
        return PageHandlers(controller)

    async def ask(
        self,
        pages: PageHandlers,
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

    async def test_all_topics_come_by_name(self, pages: PageHandlers, controller: Controller) -> None:
        response = await self.ask(pages)
        assert self.shown(response) == [("a", 0, [0]), ("b", 0, [0, 1, 2]), ("c", 0, [0, 1])]
        assert response.next_cursor is None
        assert response.topics[0].topic_id == controller.image.topics["a"].id
        assert response.topics[0].topic_authorized_operations == 3576

    async def test_named_topics_come_by_name_and_missing_ones_with_their_error(self, pages: PageHandlers) -> None:
        response = await self.ask(pages, "c", "no-such", "a", "bad name", "a")
        assert self.shown(response) == [
            ("a", 0, [0]),
            ("bad name", Code.INVALID_TOPIC_EXCEPTION, []),
            ("c", 0, [0, 1]),
            ("no-such", Code.UNKNOWN_TOPIC_OR_PARTITION, []),
        ]

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 100, 0, -5])
    async def test_pages_of_any_size_make_up_the_whole(self, pages: PageHandlers, limit: int) -> None:
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
        self, pages: PageHandlers, controller: Controller
    ) -> None:
        await controller.delete_topics(["b"])
        assert self.shown(await self.ask(pages, cursor=("b", 1))) == [("c", 0, [0, 1])]

    @pytest.mark.parametrize("cursor", [("c", 0), ("a", -1)])
    async def test_a_cursor_that_does_not_fit_is_refused(self, pages: PageHandlers, cursor: tuple[str, int]) -> None:
        response = await self.ask(pages, "a", "b", cursor=cursor)
        assert self.shown(response) == [("a", Code.INVALID_REQUEST, []), ("b", Code.INVALID_REQUEST, [])]

    async def test_a_cursor_past_the_last_partition_shows_none_of_that_topic(self, pages: PageHandlers) -> None:
        assert self.shown(await self.ask(pages, cursor=("b", 9))) == [("b", 0, []), ("c", 0, [0, 1])]
