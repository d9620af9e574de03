"""What the pipeline asks brokers: topics with their ids, first and last offsets, offsets by time.

confluent-kafka is imported inside the functions: Spark imports data sources to look at their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.ids import TopicPartition
from penstock.pipeline.failure import PipelineError
from penstock.pipeline.topics.options import SERVERS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

TIMEOUT_S = 30.0
VIEW_OF = "penstock.view.of"
"""The topic setting by which a topic is a view."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now; one that is made anew under the same name has another id."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


class Brokers:
    """A cluster, asked as any admin client does."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._servers = kafka[SERVERS]
        self._settings = dict(kafka)
        self._made: AdminClient | None = None

    @property
    def _client(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        if self._made is None:
            self._made = AdminClient(quiet(self._settings))
        return self._made

    def cluster_id(self) -> str:
        return str(self._answer(self._client.describe_cluster(request_timeout=TIMEOUT_S), "the cluster").cluster_id)

    def names(self) -> list[str]:
        """Of all topics but internal ones."""
        from confluent_kafka import KafkaException

        try:
            known = self._client.list_topics(timeout=TIMEOUT_S).topics
        except KafkaException as error:
            raise self._failed("topics", error) from None
        return sorted(name for name in known if not name.startswith("__"))

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of them that exist."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        wanted = sorted(names)
        if not wanted:
            return {}
        found = {}
        asked = self._client.describe_topics(TopicCollection(wanted), request_timeout=TIMEOUT_S)
        for name, answer in asked.items():
            try:
                described = answer.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise self._failed(f"topic {name}", error) from None
            numbers = sorted(partition.id for partition in described.partitions)
            found[name] = Topic(name, str(described.topic_id), tuple(numbers))
        return found

    def first_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(dict.fromkeys(partitions, _spec().earliest()))

    def end_offsets(self, partitions: Iterable[TopicPartition], *, committed: bool) -> dict[TopicPartition, int]:
        """Last stable offsets, or high watermarks."""
        return self._offsets(dict.fromkeys(partitions, _spec().latest()), committed)

    def offsets_since(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset of each partition that is as young; None where nothing is."""
        answers = self._offsets({at: _spec().for_timestamp(time_ms) for at, time_ms in times_ms.items()})
        return {at: offset if offset >= 0 else None for at, offset in answers.items()}

    def set_config(self, topics: Iterable[str], name: str, value: str) -> None:
        """Sets a setting of topics, and leaves the others."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        wanted = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry]) for topic in topics]
        if wanted:
            for resource, answer in self._client.incremental_alter_configs(wanted).items():
                self._answer(answer, f"{name} of topic {resource.name}")

    def views(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the topics that show records of another one."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        known = self.topics(names)
        if not known:
            return frozenset()
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in known]
        answers = self._client.describe_configs(asked, request_timeout=TIMEOUT_S)
        configs = {each.name: self._answer(answer, f"topic {each.name}") for each, answer in answers.items()}
        # A broker that is not ours has no such setting.
        return frozenset(name for name, each in configs.items() if VIEW_OF in each and each[VIEW_OF].value)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets of a group that nobody is a member of."""
        from confluent_kafka import Consumer, KafkaException
        from confluent_kafka import TopicPartition as Committed

        if not offsets:
            return
        client = Consumer(quiet(self._settings | {"group.id": group, "enable.auto.commit": False}))
        try:
            wanted = [Committed(at.topic, at.partition, offset) for at, offset in offsets.items()]
            for answer in client.commit(offsets=wanted, asynchronous=False) or ():
                if answer.error is not None:
                    raise KafkaException(answer.error)
        except KafkaException as error:
            raise PipelineError(f"offsets of group {group} cannot be committed: {reason_of(error)}") from None
        finally:
            client.close()

    def members(self, group: str) -> list[str]:
        """The client ids of a group's members; of one that there is not, none."""
        answers = self._client.describe_consumer_groups([group], request_timeout=TIMEOUT_S)
        return sorted(str(each.client_id) for each in self._answer(answers[group], f"group {group}").members)

    def committed_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where a group is to go on; partitions of which it has committed nothing are left out."""
        from confluent_kafka import ConsumerGroupTopicPartitions
        from confluent_kafka import TopicPartition as Asked

        asked = [Asked(at.topic, at.partition) for at in partitions]
        if not asked:
            return {}
        answers = self._client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, asked)])
        known = self._answer(answers[group], f"offsets of group {group}").topic_partitions or ()
        return {TopicPartition(each.topic, each.partition): each.offset for each in known if each.offset >= 0}

    def _offsets(self, asked: Mapping[TopicPartition, Any], committed: bool = False) -> dict[TopicPartition, int]:
        from confluent_kafka import TopicPartition as Asked

        from penstock.sdk.positions import positions

        wanted = {Asked(at.topic, at.partition): which for at, which in asked.items()}
        found = positions(self._client, wanted, TIMEOUT_S, committed=committed)
        for at, error in found.errors.items():
            raise self._failed(f"{at.topic}-{at.partition}", error)
        return {TopicPartition(at.topic, at.partition): offset for at, offset in found.offsets.items()}

    def _answer(self, answer: Future[Any], what: str) -> Any:
        from confluent_kafka import KafkaException

        try:
            return answer.result()
        except KafkaException as error:
            raise self._failed(what, error) from None

    def _failed(self, what: str, error: Exception) -> PipelineError:
        return PipelineError(f"{what} cannot be looked up at {self._servers}: {reason_of(error)}")


def quiet(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a client that does not talk to the terminal: what matters fails the call that needed it."""
    return {"client.id": "penstock-spark", "log_level": 0, "error_cb": _ignore} | dict(settings)


def reason_of(error: BaseException) -> str:
    """The words of a client error without its code numbers."""
    cause = error.args[0] if error.args else error
    text = cause.str() if hasattr(cause, "str") else str(cause)
    return " ".join(text.split()) or type(error).__name__


def _spec() -> Any:
    # The library has no types here.
    from confluent_kafka.admin import OffsetSpec

    return OffsetSpec


def _ignore(error: object) -> None:
    pass
