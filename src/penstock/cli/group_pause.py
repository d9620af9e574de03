"""Pauses for `penstock group`: which groups receive nothing, wholly or of some topics, and changing that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.client import TIMEOUT_S, saying
from penstock.config.group import PAUSED, PAUSED_TOPICS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConfigEntry

_GROUPS_AT_ONCE = 500


class Paused(NamedTuple):
    """What a group does not receive."""

    is_all: bool
    topics: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.is_all or bool(self.topics)

    def __str__(self) -> str:
        return "all" if self.is_all else ",".join(self.topics)


def pauses(client: AdminClient, groups: Iterable[str]) -> dict[str, Paused]:
    """By group; groups that do not exist can be paused too."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    names = list(groups)
    found = {}
    for begin in range(0, len(names), _GROUPS_AT_ONCE):
        asked = [ConfigResource(ResourceType.GROUP, name) for name in names[begin : begin + _GROUPS_AT_ONCE]]
        for resource, answer in client.describe_configs(asked, request_timeout=TIMEOUT_S).items():
            with saying(f"the settings of group {resource.name} cannot be read"):
                values = {name: entry.value for name, entry in answer.result().items()}
            topics = values.get(PAUSED_TOPICS.name) or PAUSED_TOPICS.default
            is_all = values.get(PAUSED.name) == "true"
            found[resource.name] = Paused(is_all, tuple(topic for topic in topics.split(",") if topic))
    return found


def pause(client: AdminClient, group: str, topics: Sequence[str]) -> None:
    """All of the group, or these topics besides those that are paused already."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

    if topics:
        change = ConfigEntry(PAUSED_TOPICS.name, ",".join(topics), incremental_operation=AlterConfigOpType.APPEND)
    else:
        change = ConfigEntry(PAUSED.name, "true", incremental_operation=AlterConfigOpType.SET)
    _alter(client, group, f"group {group} was not paused", [change])


def resume(client: AdminClient, group: str, topics: Sequence[str]) -> None:
    """Everything, or these topics."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

    if topics:
        taken = AlterConfigOpType.SUBTRACT
        changes = [ConfigEntry(PAUSED_TOPICS.name, ",".join(topics), incremental_operation=taken)]
    else:
        gone = AlterConfigOpType.DELETE
        changes = [ConfigEntry(name, None, incremental_operation=gone) for name in (PAUSED.name, PAUSED_TOPICS.name)]
    _alter(client, group, f"group {group} was not resumed", changes)


def _alter(client: AdminClient, group: str, failure: str, changes: list[ConfigEntry]) -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=changes)
    (answer,) = client.incremental_alter_configs([resource], request_timeout=TIMEOUT_S).values()
    with saying(failure):
        answer.result()
