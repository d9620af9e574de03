"""Retired partitions for `penstock topic`: choosing successors, and who still has something to read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import typer

from penstock.cli.client import TIMEOUT_S, saying
from penstock.cli.failure import CommandError
from penstock.cluster.retiring import Place
from penstock.cluster.retiring import retire as with_retired
from penstock.config.retired import RETIRED_SETTING, parse_retired, spell_retired
from penstock.errors import ConfigError
from penstock.ids import BrokerId

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, TopicMetadata


def parse_partitions(text: str) -> list[int]:
    """`3,4` as numbers."""
    items = [item.strip() for item in text.split(",")]
    if not all(item.isascii() and item.isdigit() for item in items):
        raise typer.BadParameter(f"{text!r} is not a list of partitions such as 3,4", param_hint="--partitions")
    return sorted(set(map(int, items)))


def planned(topic: TopicMetadata, before: Mapping[int, int], wanted: Collection[int]) -> Mapping[int, int]:
    """Every retired partition with its successor, as it shall be; a failure says why that cannot be."""
    places = [
        Place(BrokerId(partition.leader), frozenset(map(BrokerId, partition.replicas)))
        for _, partition in sorted(topic.partitions.items())
    ]
    try:
        return with_retired(places, before, wanted)
    except ConfigError as error:
        raise CommandError(f"topic {topic.topic} keeps its partitions: {error}") from None


def retired_of(client: AdminClient, name: str) -> Mapping[int, int]:
    """The successor of each retired partition, gone ones included."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, name)
    with saying(f"the settings of topic {name} cannot be read"):
        entries = client.describe_configs([resource], request_timeout=TIMEOUT_S)[resource].result()
    entry = entries.get(RETIRED_SETTING)
    return parse_retired(entry.value.split(",")) if entry is not None and entry.value else {}


def put_retired(client: AdminClient, name: str, successors: Mapping[int, int], *, only_check: bool) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    value = spell_retired(successors)
    entry = ConfigEntry(RETIRED_SETTING, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    with saying(f"topic {name} keeps its partitions"):
        client.incremental_alter_configs([resource], validate_only=only_check, request_timeout=TIMEOUT_S)[
            resource
        ].result()


def behind(client: AdminClient, name: str, ends: Mapping[int, int]) -> dict[int, list[str]]:
    """For each of these partitions, the groups whose committed offset lies before its end."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    found: dict[int, list[str]] = {index: [] for index in ends}
    if not ends:
        return found
    with saying(f"the groups of topic {name} cannot be read"):
        listed = client.list_consumer_groups(request_timeout=TIMEOUT_S).result()
        for group in sorted(each.group_id for each in listed.valid):
            asked = ConsumerGroupTopicPartitions(group, [TopicPartition(name, index) for index in ends])
            (answer,) = client.list_consumer_group_offsets([asked], request_timeout=TIMEOUT_S).values()
            for told in answer.result().topic_partitions:
                if 0 <= told.offset < ends[told.partition]:
                    found[told.partition].append(group)
    return found
