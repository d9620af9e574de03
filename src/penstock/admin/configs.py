"""Settings of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any

from confluent_kafka.admin import AlterConfigOpType, ConfigSource, ResourceType
from confluent_kafka.admin import ConfigEntry as LibraryEntry
from confluent_kafka.admin import ConfigResource as LibraryResource

from penstock.admin.connection import AdminConnection, Deadline
from penstock.admin.results import Results

_RESOURCES_PER_REQUEST = 500
_DEFAULT = ConfigSource.DEFAULT_CONFIG.name
_TOPIC_OVERRIDE = ConfigSource.DYNAMIC_TOPIC_CONFIG.name


class ResourceKind(Enum):
    """What has settings."""

    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"


_LIBRARY_KINDS = {
    ResourceKind.TOPIC: ResourceType.TOPIC,
    ResourceKind.BROKER: ResourceType.BROKER,
    ResourceKind.GROUP: ResourceType.GROUP,
}


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """One topic, broker or group; `str()` is how messages name it."""

    kind: ResourceKind
    name: str

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        return cls(ResourceKind.TOPIC, name)

    @classmethod
    def broker(cls, id: int) -> ConfigResource:
        return cls(ResourceKind.BROKER, str(id))

    @classmethod
    def group(cls, name: str) -> ConfigResource:
        return cls(ResourceKind.GROUP, name)

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting as it is in effect."""

    name: str
    value: str | None
    """None for a value that brokers do not reveal."""
    source: str
    """Kafka's name of where it was set: DYNAMIC_TOPIC_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG, ..."""
    is_read_only: bool
    is_sensitive: bool

    @property
    def is_default(self) -> bool:
        """Whether the setting has its built-in default."""
        return self.source == _DEFAULT

    @property
    def is_topic_override(self) -> bool:
        """Whether it was set on the topic itself."""
        return self.source == _TOPIC_OVERRIDE


class ConfigOperation(Enum):
    """What a change does to a setting."""

    SET = "set"
    DELETE = "delete"
    APPEND = "append"
    SUBTRACT = "subtract"


_LIBRARY_OPERATIONS = {
    ConfigOperation.SET: AlterConfigOpType.SET,
    ConfigOperation.DELETE: AlterConfigOpType.DELETE,
    ConfigOperation.APPEND: AlterConfigOpType.APPEND,
    ConfigOperation.SUBTRACT: AlterConfigOpType.SUBTRACT,
}


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of one setting; the settings that no change names stay as they are."""

    name: str
    operation: ConfigOperation
    value: str | None = None

    @classmethod
    def set(cls, name: str, value: str) -> ConfigChange:
        return cls(name, ConfigOperation.SET, value)

    @classmethod
    def delete(cls, name: str) -> ConfigChange:
        """Returns the setting to its default."""
        return cls(name, ConfigOperation.DELETE)

    @classmethod
    def append(cls, name: str, items: Iterable[str]) -> ConfigChange:
        """Adds items to a setting that is a list."""
        return cls(name, ConfigOperation.APPEND, ",".join(items))

    @classmethod
    def subtract(cls, name: str, items: Iterable[str]) -> ConfigChange:
        """Removes items from a setting that is a list."""
        return cls(name, ConfigOperation.SUBTRACT, ",".join(items))


Configs = Mapping[str, ConfigEntry]
"""The settings of one resource, by name."""


class ConfigOperations:
    """Operations on settings."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    def describe(self, resources: Iterable[ConfigResource]) -> Results[ConfigResource, Configs]:
        """The settings of each resource, defaults included."""
        deadline = self._connection.deadline()
        wanted = list(dict.fromkeys(resources))
        found: Results[ConfigResource, Any] = Results()
        for request in _requests(wanted):
            found = _joined(found, self._describe(request, deadline))
        return found.map(lambda entries: {name: _entry(entry) for name, entry in sorted(entries.items())})

    def alter(
        self, changes: Mapping[ConfigResource, Sequence[ConfigChange]], *, validate_only: bool = False
    ) -> Results[ConfigResource, None]:
        """Changes settings: for each resource the broker applies all changes or none. `validate_only` checks and
        changes nothing.

        The results leave out a resource without changes.
        """
        deadline = self._connection.deadline()
        done: Results[ConfigResource, Any] = Results()
        for request in _requests([resource for resource, wanted in changes.items() if wanted]):
            altered = {
                LibraryResource(
                    _LIBRARY_KINDS[resource.kind],
                    resource.name,
                    incremental_configs=[_library_change(change) for change in changes[resource]],
                ): resource
                for resource in request
            }
            sent = self._connection.send(
                lambda altered=altered: self._connection.client.incremental_alter_configs(  # type: ignore[misc]
                    list(altered), validate_only=validate_only, request_timeout=deadline.left_s
                )
            )
            answers: dict[ConfigResource, Future[Any]] = {altered[key]: future for key, future in sent.items()}
            done = _joined(done, self._connection.results(answers, deadline))
        return done.map(lambda _: None)

    def _describe(self, request: Sequence[ConfigResource], deadline: Deadline) -> Results[ConfigResource, Any]:
        asked = {LibraryResource(_LIBRARY_KINDS[each.kind], each.name): each for each in request}
        sent = self._connection.send(
            lambda: self._connection.client.describe_configs(list(asked), request_timeout=deadline.left_s)
        )
        return self._connection.results({asked[key]: future for key, future in sent.items()}, deadline)


def _requests(resources: Sequence[ConfigResource]) -> list[Sequence[ConfigResource]]:
    """Each broker answers for itself and gets a request of its own; all other resources share requests."""
    brokers = [[each] for each in resources if each.kind is ResourceKind.BROKER]
    others = [each for each in resources if each.kind is not ResourceKind.BROKER]
    chunks = [others[at : at + _RESOURCES_PER_REQUEST] for at in range(0, len(others), _RESOURCES_PER_REQUEST)]
    return [*brokers, *chunks]


def _joined(one: Results[ConfigResource, Any], other: Results[ConfigResource, Any]) -> Results[ConfigResource, Any]:
    return Results({**one.values, **other.values}, {**one.errors, **other.errors})


def _entry(entry: Any) -> ConfigEntry:
    try:
        source = ConfigSource(entry.source).name
    except ValueError:
        # Newer than the library, such as the settings of a group.
        source = "UNKNOWN_CONFIG"
    return ConfigEntry(entry.name, entry.value, source, bool(entry.is_read_only), bool(entry.is_sensitive))


def _library_change(change: ConfigChange) -> LibraryEntry:
    operation = _LIBRARY_OPERATIONS[change.operation]
    return LibraryEntry(change.name, change.value, incremental_operation=operation)
