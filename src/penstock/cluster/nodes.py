"""The nodes of the coordination tree: which paths there are, and what their values say.

    /cluster                  {"cluster_id": "…"}
    /brokers/<id>             {"host": "…", "port": 9092, "rack": null}
    /topics/<name>            {"id": "…", "internal": false, "overrides": {…}, "partitions": [
                                 {"in_sync": [0], "leader": 0, "leader_epoch": 0, "replicas": [0]}, …]}
    /settings/default         {"log.retention.ms": "…"}      every broker
    /settings/broker-<id>     {…}                            one broker
    /settings/group-<name>    {"penstock.paused": "true"}    one group; its name is written as in a URL
    /producer-ids             {"next": 1000}                 ids below it have been handed out

Values are JSON with sorted keys: a person can read them, and the same thing is always the same bytes.
A value that does not parse is a `CoordinationError` that names the node, never a guess.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from penstock.cluster.metadata import BrokerInfo, PartitionImage, TopicImage
from penstock.errors import CoordinationError
from penstock.ids import BrokerId, TopicId

T = TypeVar("T")

CLUSTER = "/cluster"
BROKERS = "/brokers"
TOPICS = "/topics"
SETTINGS = "/settings"
DEFAULT_SETTINGS = "/settings/default"
PRODUCER_IDS = "/producer-ids"

_BROKER_SETTINGS = "/settings/broker-"
_GROUP_SETTINGS = "/settings/group-"


def broker_path(broker: BrokerId) -> str:
    return f"{BROKERS}/{broker}"


def topic_path(name: str) -> str:
    return f"{TOPICS}/{name}"


def settings_path(broker: BrokerId | None) -> str:
    """Where the settings of one broker are kept, or of all of them for None."""
    return DEFAULT_SETTINGS if broker is None else f"{_BROKER_SETTINGS}{broker}"


def group_settings_path(group_id: str) -> str:
    """A group may be called anything."""
    return _GROUP_SETTINGS + quote(group_id, safe="")


def group_of_settings(path: str) -> str | None:
    """The group whose settings a node below `/settings` holds; None for those of others."""
    name = path.removeprefix(_GROUP_SETTINGS)
    return None if name == path else unquote(name)


def broker_of_settings(path: str) -> BrokerId:
    """The broker whose settings a node below `/settings` holds."""
    number = path.removeprefix(_BROKER_SETTINGS)
    if number == path or not number.isdecimal():
        raise CoordinationError(f"the coordination tree holds an unknown node {path}")
    return BrokerId(int(number))


def encode_cluster(cluster_id: str) -> bytes:
    return _encode({"cluster_id": cluster_id})


def decode_cluster(value: bytes) -> str:
    return _decode(CLUSTER, value, lambda fields: _text(fields["cluster_id"]))


def encode_broker(broker: BrokerInfo) -> bytes:
    return _encode({"host": broker.host, "port": broker.port, "rack": broker.rack})


def decode_broker(broker: BrokerId, value: bytes) -> BrokerInfo:
    def build(fields: dict[str, Any]) -> BrokerInfo:
        rack = fields["rack"]
        return BrokerInfo(broker, _text(fields["host"]), _number(fields["port"]), None if rack is None else _text(rack))

    return _decode(broker_path(broker), value, build)


def encode_topic(topic: TopicImage) -> bytes:
    return _encode(
        {
            "id": str(topic.id),
            "internal": topic.is_internal,
            "overrides": dict(topic.overrides),
            "partitions": [
                {
                    "in_sync": partition.in_sync,
                    "leader": partition.leader,
                    "leader_epoch": partition.leader_epoch,
                    "replicas": partition.replicas,
                }
                for partition in topic.partitions
            ],
        }
    )


def decode_topic(name: str, value: bytes) -> TopicImage:
    def build(fields: dict[str, Any]) -> TopicImage:
        return TopicImage(
            name=name,
            id=TopicId(fields["id"]),
            partitions=tuple(
                PartitionImage(
                    index=index,
                    leader=BrokerId(_number(partition["leader"])),
                    leader_epoch=_number(partition["leader_epoch"]),
                    replicas=_broker_ids(partition["replicas"]),
                    in_sync=_broker_ids(partition["in_sync"]),
                )
                for index, partition in enumerate(fields["partitions"])
            ),
            overrides=_text_by_text(fields["overrides"]),
            is_internal=bool(fields["internal"]),
        )

    return _decode(topic_path(name), value, build)


def encode_settings(settings: Mapping[str, str]) -> bytes:
    return _encode(dict(settings))


def decode_settings(path: str, value: bytes) -> Mapping[str, str]:
    return _decode(path, value, _text_by_text)


def encode_next_producer_id(next_id: int) -> bytes:
    return _encode({"next": next_id})


def decode_next_producer_id(value: bytes) -> int:
    return _decode(PRODUCER_IDS, value, lambda fields: _number(fields["next"]))


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _decode(path: str, value: bytes, build: Callable[[dict[str, Any]], T]) -> T:
    try:
        fields = json.loads(value)
        if not isinstance(fields, dict):
            raise TypeError("not an object")
        return build(fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CoordinationError(f"node {path} of the coordination tree cannot be read: {error!r}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _broker_ids(values: Any) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(_number(value)) for value in values)


def _text_by_text(values: Any) -> Mapping[str, str]:
    return MappingProxyType({_text(key): _text(value) for key, value in values.items()})
