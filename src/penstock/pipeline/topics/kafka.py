"""What the pipeline asks brokers: topics with their ids, first and last offsets, offsets by time.

confluent-kafka is imported inside the functions: Spark imports data sources to look at their names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import Code
from penstock.ids import TopicPartition
from penstock.pipeline.failure import PipelineError
from penstock.pipeline.topics.options import SERVERS

if TYPE_CHECKING:
    from penstock.admin import AdminError, Cluster, CommittedOffset, Results

K = TypeVar("K")
V = TypeVar("V")

TIMEOUT_S = 30.0
_CLIENT_ID = "penstock-spark"
VIEW_OF = "penstock.view.of"
"""The topic setting by which a topic is a view."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now; one that is made anew under the same name has another id."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


class Brokers:
    """A cluster, asked through the admin API; what brokers refuse is a PipelineError."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._servers = kafka[SERVERS]
        self._settings = dict(kafka)
        self._made: Cluster | None = None

    @property
    def _cluster(self) -> Cluster:
        from penstock.admin import Cluster

        if self._made is None:
            self._made = Cluster(self._servers, timeout_s=TIMEOUT_S, client_id=_CLIENT_ID, settings=self._settings)
        return self._made

    def cluster_id(self) -> str:
        with self._looking_up("the cluster"):
            return self._cluster.id()

    def names(self) -> list[str]:
        """Of all topics but internal ones."""
        with self._looking_up("topics"):
            return [topic.name for topic in self._cluster.topics.list()]

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of them that exist."""
        with self._looking_up("topics"):
            found = self._cluster.topics.identify(names)
        for name, error in found.errors.items():
            if error.code != Code.UNKNOWN_TOPIC_OR_PARTITION.name:
                raise self._failed(f"topic {name}", error)
        return {name: Topic(name, each.id, tuple(range(each.partition_count))) for name, each in found.values.items()}

    def first_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._all(self._cluster.offsets.earliest(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition], *, committed: bool) -> dict[TopicPartition, int]:
        """Last stable offsets, or high watermarks."""
        return self._all(self._cluster.offsets.latest(partitions, committed=committed))

    def offsets_since(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset of each partition that is as young; None where nothing is."""
        return self._all(self._cluster.offsets.at_times(times_ms))

    def set_config(self, topics: Iterable[str], name: str, value: str) -> None:
        """Sets a setting of topics, and leaves the others."""
        from penstock.admin import ConfigChange, ConfigResource

        with self._looking_up(name):
            self._all(
                self._cluster.configs.alter(
                    {ConfigResource.topic(topic): [ConfigChange.set(name, value)] for topic in topics}
                )
            )

    def views(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the topics that show records of another one."""
        with self._looking_up("topics"):
            configs = self._all(self._cluster.topics.configs(self.topics(names)))
        # A broker that is not ours has no such setting.
        return frozenset(name for name, each in configs.items() if VIEW_OF in each and each[VIEW_OF].value)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets of a group that has no members."""
        from penstock.admin import AdminError

        try:
            self._cluster.groups.set_offsets(group, offsets, fence_members=False).all()
        except AdminError as error:
            raise PipelineError(f"offsets of group {group} cannot be committed: {error}") from None

    def members(self, group: str) -> list[str]:
        """The client ids of a group's members; of one that there is not, none."""
        with self._looking_up(f"group {group}"):
            found = self._cluster.groups.describe([group])
        if group in found.errors and found.errors[group].code == Code.GROUP_ID_NOT_FOUND.name:
            return []
        return sorted(member.client_id for member in self._all(found)[group].members)

    def committed_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where a group is to go on; partitions of which it has committed nothing are left out."""
        wanted = set(partitions)
        if not wanted:
            return {}
        with self._looking_up(f"offsets of group {group}"):
            found = self._all(self._cluster.groups.committed([group]))[group]
        return {at: each.offset for at, each in found.items() if at in wanted}

    def committed_by_groups(
        self, topics: Collection[str], leave_out: tuple[str, ...]
    ) -> dict[str, dict[TopicPartition, int]]:
        """The committed offsets of every group in these topics; `leave_out` are prefixes of group names."""
        with self._looking_up("groups"):
            names = [each.name for each in self._cluster.groups.list().groups if not each.name.startswith(leave_out)]
            committed = self._all(self._cluster.groups.committed(names))
        return {
            group: {at: each.offset for at, each in offsets.items() if at.topic in topics}
            for group, offsets in committed.items()
        }

    def committed_by(self, group: str) -> list[CommittedOffset]:
        """All offsets of a group with their metadata, once open transactions have ended."""
        with self._looking_up(f"offsets of group {group}"):
            return list(self._all(self._cluster.groups.committed([group], require_stable=True))[group].values())

    def delete_groups(self, names: Iterable[str]) -> None:
        """Deletes groups as far as that can be done."""
        with self._looking_up("groups"):
            self._cluster.groups.delete(names)

    @contextmanager
    def _looking_up(self, what: str) -> Iterator[None]:
        from penstock.admin import AdminError

        try:
            yield
        except AdminError as error:
            raise self._failed(what, error) from None

    def _all(self, found: Results[K, V]) -> dict[K, V]:
        for key, error in found.errors.items():
            raise self._failed(str(key), error)
        return dict(found.values)

    def _failed(self, what: str, error: AdminError) -> PipelineError:
        return PipelineError(f"{what} cannot be looked up at {self._servers}: {error.message}")


def quiet(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a client that does not talk to the terminal: what matters fails the call that needed it."""
    return {"client.id": _CLIENT_ID, "log_level": 0, "error_cb": _ignore} | dict(settings)


def reason_of(error: BaseException) -> str:
    """The words of a client error without its code numbers."""
    cause = error.args[0] if error.args else error
    text = cause.str() if hasattr(cause, "str") else str(cause)
    return " ".join(text.split()) or type(error).__name__


def _ignore(error: object) -> None:
    pass
