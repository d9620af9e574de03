"""The nodes of the coordination tree: which paths there are, and what their values say.

    /cluster                  {"cluster_id": "…"}
    /controller               {"broker": 1, "epoch": 3}      who was elected last
    /brokers/<id>             {"alive": true, "epoch": 5, "host": "…", "port": 9092, "rack": null}
                              and "endpoints": [{"listener": "PLAINTEXT", "host": "…", "port": 9092}, …] (with
                              "protocol" unless that is PLAINTEXT),
                              in a cluster: "inter_broker_listener": "INTER_BROKER",
                              of a broker that reaches the shared storage: "shared_storage": true,
                              if it has the key to passwords of database groups, its fingerprint: "database_key": "…",
                              and of a broker that is gone: "away_since_ms": 1700000000000
    /leases/broker-<id>       {"folder": "…", "start": "…"}  leased; by whose data folder it is held, since which start
    /leases/controller        {"folder": "…", "start": "…"}  leased
    /topics/<name>            {"id": "…", "internal": false, "overrides": {…}, "partitions": [
                                 {"in_sync": [0], "leader": 0, "leader_epoch": 0, "replicas": [0]}, …]}
                              and of a partition that moves also: "adding": [1], "removing": [0],
                              of one in another database group than "default": "database": "orders",
                              and while it moves to another one: "database_to": "billing"
    /databases/<group>        {"draining": false, "generation": 0, "primary": 0, "servers": [
                                 {"address": "mysql://user@host:3306/db", "secret": "…"}, …]}
    /databases/<group>/…      leased; which of its servers answer. For people and other programs: no broker reads them
    /settings/default         {"log.retention.ms": "…"}      every broker
    /settings/broker-<id>     {"penstock.draining": "true"}  one broker
    /settings/group-<name>    {"penstock.paused": "true"}    one group; its name is written as in a URL
    /acls/topic-literal-orders {"entries": [{"host": "*", "operation": "READ", "permission": "ALLOW",
                                 "principal": "User:alice"}, …]}
                              the type, the pattern and the name, as in a URL, of what these ACLs are about
    /quotas/<entity>          {"producer_byte_rate": 1048576.0} what clients are limited to; <entity> is user:<name>,
                              client-id:<name>, user:<name>;client-id:<name> or ip:<address>, names written as in a
                              URL, and without ":<name>" for the default
    /users/<name>             {"SCRAM-SHA-512": {"iterations": 8192, "salt": "…", "server_key": "…", "stored_key": "…"}}
                              by mechanism, in base64; the name is written as in a URL
    /login-secret             {"secret": "…"}                what unknown users are answered with is made from it
    /producer-ids             {"next": 1000}                 ids below it have been handed out

What a node lacks that was written before there were clusters has the value that it had for a single broker.
Values are JSON with sorted keys: a person can read them, and the same thing is always the same bytes.
A value that does not parse is a `CoordinationError` that names the node, never a guess.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from penstock.cluster.metadata import (
    DEFAULT_DATABASE,
    BrokerInfo,
    DatabaseGroupInfo,
    DatabaseServer,
    ListenerEndpoint,
    PartitionImage,
    TopicImage,
)
from penstock.config.security import SecurityProtocol
from penstock.errors import CoordinationError
from penstock.ids import BrokerId, TopicId
from penstock.security.acls import AclEntry, Operation, PatternType, Permission, ResourcePattern, ResourceType
from penstock.security.principal import Principal
from penstock.security.quota_entity import QuotaEntity, quota_entity
from penstock.security.quota_keys import QuotaLimits, checked_limit
from penstock.security.scram import ScramCredential, ScramMechanism
from penstock.security.users import Credentials

T = TypeVar("T")

CLUSTER = "/cluster"
CONTROLLER = "/controller"
BROKERS = "/brokers"
LEASES = "/leases"
CONTROLLER_LEASE = "/leases/controller"
TOPICS = "/topics"
DATABASES = "/databases"
SETTINGS = "/settings"
DEFAULT_SETTINGS = "/settings/default"
ACLS = "/acls"
QUOTAS = "/quotas"
PRODUCER_IDS = "/producer-ids"
USERS = "/users"
LOGIN_SECRET = "/login-secret"

BROKER_LEASE_PREFIX = "broker-"
_BROKER_SETTINGS = "/settings/broker-"
_GROUP_SETTINGS = "/settings/group-"
_NO_PARTITIONS = b"[]}"
"""How the node of a topic without partitions ends."""


def broker_path(broker: BrokerId) -> str:
    return f"{BROKERS}/{broker}"


def lease_path(broker: BrokerId) -> str:
    return f"{LEASES}/{BROKER_LEASE_PREFIX}{broker}"


def brokers_with_lease(names: Iterable[str]) -> frozenset[BrokerId]:
    """The brokers behind the names of the nodes below `/leases`."""
    numbers = (name.removeprefix(BROKER_LEASE_PREFIX) for name in names if name.startswith(BROKER_LEASE_PREFIX))
    return frozenset(BrokerId(int(number)) for number in numbers if number.isdecimal())


def broker_of(path: str) -> BrokerId:
    """The broker that a node below `/brokers` describes."""
    number = path.removeprefix(f"{BROKERS}/")
    if not number.isdecimal():
        raise CoordinationError(f"the coordination tree holds an unknown node {path}")
    return BrokerId(int(number))


def topic_of(path: str) -> str:
    """The topic that a node below `/topics` describes."""
    return path.removeprefix(f"{TOPICS}/")


def topic_path(name: str) -> str:
    return f"{TOPICS}/{name}"


def database_path(group: str) -> str:
    return f"{DATABASES}/{group}"


def database_of(path: str) -> str:
    """The database group that a node below `/databases` describes."""
    return path.removeprefix(f"{DATABASES}/")


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


def quota_path(entity: QuotaEntity) -> str:
    names = (f"{type_}:{quote(name, safe='')}" if name else type_ for type_, name in entity.names.items())
    return f"{QUOTAS}/{';'.join(names)}"


def quota_entity_of(path: str) -> QuotaEntity:
    """The entity that a node below `/quotas` is about."""
    parts = [part.partition(":") for part in path.removeprefix(f"{QUOTAS}/").split(";")]
    try:
        return quota_entity({type_: unquote(name) if colon else None for type_, colon, name in parts})
    except ValueError as error:
        raise CoordinationError(f"the coordination tree holds an unknown node {path}: {error}") from error


def encode_cluster(cluster_id: str) -> bytes:
    return _encode({"cluster_id": cluster_id})


def decode_cluster(value: bytes) -> str:
    return _decode(CLUSTER, value, lambda fields: _text(fields["cluster_id"]))


def encode_controller(broker: BrokerId, epoch: int) -> bytes:
    return _encode({"broker": broker, "epoch": epoch})


def decode_controller(value: bytes) -> tuple[BrokerId, int]:
    return _decode(CONTROLLER, value, lambda fields: (BrokerId(_number(fields["broker"])), _number(fields["epoch"])))


def encode_lease(folder: str, start: str) -> bytes:
    return _encode({"folder": folder, "start": start})


def decode_lease(path: str, value: bytes) -> tuple[str, str]:
    """The data folder and the start that the lease belongs to."""
    return _decode(path, value, lambda fields: (_text(fields["folder"]), _text(fields["start"])))


def encode_broker(broker: BrokerInfo) -> bytes:
    fields: dict[str, Any] = {
        "alive": broker.is_alive,
        "epoch": broker.epoch,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
    }
    if broker.away_since_ms is not None:
        fields["away_since_ms"] = broker.away_since_ms
    if broker.endpoints:
        fields["endpoints"] = [_encoded_endpoint(endpoint) for endpoint in broker.endpoints]
    if broker.inter_broker_listener is not None:
        fields["inter_broker_listener"] = broker.inter_broker_listener
    if broker.has_shared_storage:
        fields["shared_storage"] = True
    if broker.database_key:
        fields["database_key"] = broker.database_key
    return _encode(fields)


def _encoded_endpoint(endpoint: ListenerEndpoint) -> dict[str, Any]:
    fields: dict[str, Any] = {"listener": endpoint.listener, "host": endpoint.host, "port": endpoint.port}
    if endpoint.protocol is not SecurityProtocol.PLAINTEXT:
        fields["protocol"] = endpoint.protocol.value
    return fields


def _decoded_endpoint(fields: dict[str, Any]) -> ListenerEndpoint:
    protocol = SecurityProtocol(fields.get("protocol", SecurityProtocol.PLAINTEXT.value))
    return ListenerEndpoint(_text(fields["listener"]), _text(fields["host"]), _number(fields["port"]), protocol)


def decode_broker(broker: BrokerId, value: bytes) -> BrokerInfo:
    def build(fields: dict[str, Any]) -> BrokerInfo:
        rack, away_since_ms = fields["rack"], fields.get("away_since_ms")
        inter_broker = fields.get("inter_broker_listener")
        return BrokerInfo(
            broker,
            _text(fields["host"]),
            _number(fields["port"]),
            None if rack is None else _text(rack),
            bool(fields.get("alive", True)),
            _number(fields.get("epoch", 0)),
            None if away_since_ms is None else _number(away_since_ms),
            tuple(map(_decoded_endpoint, fields.get("endpoints", ()))),
            None if inter_broker is None else _text(inter_broker),
            bool(fields.get("shared_storage", False)),
            _text(fields.get("database_key", "")),
        )

    return _decode(broker_path(broker), value, build)


def encode_topic(topic: TopicImage) -> bytes:
    fields = {
        "id": str(topic.id),
        "internal": topic.is_internal,
        "overrides": dict(topic.overrides),
        "partitions": [],
    }
    # A topic may have thousands of partitions, of which most say the same: each text is made once. And a thread that
    # does this lets others run in between, which one call of the encoder for all of them would not.
    texts: dict[object, bytes] = {}
    partitions = []
    for each in topic.partitions:
        said = (
            each.leader,
            each.leader_epoch,
            each.replicas,
            each.in_sync,
            each.adding,
            each.removing,
            each.database,
            each.database_to,
        )
        text = texts.get(said)
        if text is None:
            text = texts[said] = _encode(_partition_fields(each))
        partitions.append(text)
    head = _encode(fields)
    assert head.endswith(_NO_PARTITIONS)
    return b"".join((head.removesuffix(_NO_PARTITIONS), b"[", b",".join(partitions), b"]}"))


def _partition_fields(partition: PartitionImage) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "in_sync": partition.in_sync,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": partition.replicas,
    }
    if partition.adding:
        fields["adding"] = partition.adding
    if partition.removing:
        fields["removing"] = partition.removing
    if partition.database != DEFAULT_DATABASE:
        fields["database"] = partition.database
    if partition.database_to is not None:
        fields["database_to"] = partition.database_to
    return fields


def decode_topic(name: str, value: bytes) -> TopicImage:
    def build(fields: dict[str, Any]) -> TopicImage:
        known: dict[tuple[Any, ...], tuple[BrokerId, ...]] = {}

        def broker_ids(values: Any) -> tuple[BrokerId, ...]:
            """The same brokers are the same tuple: a topic may have thousands of partitions."""
            key = *values, *map(type, values)  # true is not 1
            found = known.get(key)
            if found is None:
                found = known[key] = _broker_ids(values)
            return found

        return TopicImage(
            name=name,
            id=TopicId(fields["id"]),
            partitions=tuple(
                PartitionImage(
                    index=index,
                    leader=BrokerId(_number(partition["leader"])),
                    leader_epoch=_number(partition["leader_epoch"]),
                    replicas=broker_ids(partition["replicas"]),
                    in_sync=broker_ids(partition["in_sync"]),
                    adding=broker_ids(partition.get("adding", ())),
                    removing=broker_ids(partition.get("removing", ())),
                    database=sys.intern(_text(partition.get("database", DEFAULT_DATABASE))),
                    database_to=_optional_text(partition.get("database_to")),
                )
                for index, partition in enumerate(fields["partitions"])
            ),
            overrides=_text_by_text(fields["overrides"]),
            is_internal=bool(fields["internal"]),
        )

    return _decode(topic_path(name), value, build)


def encode_database(group: DatabaseGroupInfo) -> bytes:
    return _encode(
        {
            "draining": group.is_draining,
            "generation": group.generation,
            "primary": group.primary,
            "servers": [{"address": server.address, "secret": server.secret} for server in group.servers],
        }
    )


def decode_database(name: str, value: bytes) -> DatabaseGroupInfo:
    def build(fields: dict[str, Any]) -> DatabaseGroupInfo:
        group = DatabaseGroupInfo(
            name,
            tuple(DatabaseServer(_text(each["address"]), _text(each["secret"])) for each in fields["servers"]),
            _number(fields["primary"]),
            _number(fields["generation"]),
            bool(fields["draining"]),
        )
        if not 0 <= group.primary < len(group.servers):
            raise ValueError(f"there is no server {group.primary}")
        return group

    return _decode(database_path(name), value, build)


def encode_settings(settings: Mapping[str, str]) -> bytes:
    return _encode(dict(settings))


def decode_settings(path: str, value: bytes) -> Mapping[str, str]:
    return _decode(path, value, _text_by_text)


def acls_path(resource: ResourcePattern) -> str:
    """Where the ACLs about a resource are kept; its name may be anything."""
    type_, name, pattern = resource
    return f"{ACLS}/{type_.name.lower()}-{pattern.name.lower()}-{quote(name, safe='')}"


def resource_of(path: str) -> ResourcePattern:
    """What the ACLs of a node below `/acls` are about."""
    type_, _, rest = path.removeprefix(f"{ACLS}/").partition("-")
    pattern, _, name = rest.partition("-")
    try:
        return ResourcePattern(ResourceType[type_.upper()], unquote(name), PatternType[pattern.upper()])
    except KeyError as error:
        raise CoordinationError(f"the coordination tree holds an unknown node {path}") from error


def encode_acls(entries: Iterable[AclEntry]) -> bytes:
    return _encode(
        {
            "entries": [
                {
                    "host": entry.host,
                    "operation": entry.operation.name,
                    "permission": entry.permission.name,
                    "principal": str(entry.principal),
                }
                for entry in entries
            ]
        }
    )


def decode_acls(path: str, value: bytes) -> tuple[AclEntry, ...]:
    def build(fields: dict[str, Any]) -> tuple[AclEntry, ...]:
        return tuple(
            AclEntry(
                Principal.parse(_text(entry["principal"])),
                _text(entry["host"]),
                Operation[entry["operation"]],
                Permission[entry["permission"]],
            )
            for entry in fields["entries"]
        )

    return _decode(path, value, build)


def encode_quota(limits: QuotaLimits) -> bytes:
    return _encode({key.value: limit for key, limit in limits.items()})


def decode_quota(path: str, value: bytes) -> QuotaLimits:
    def build(fields: dict[str, Any]) -> QuotaLimits:
        entity = quota_entity_of(path)
        return MappingProxyType(dict(checked_limit(entity, key, float(limit)) for key, limit in fields.items()))

    return _decode(path, value, build)


def user_path(name: str) -> str:
    """A user may be called anything."""
    return f"{USERS}/{quote(name, safe='')}"


def user_of(path: str) -> str:
    """The user that a node below `/users` describes."""
    return unquote(path.removeprefix(f"{USERS}/"))


def encode_user(credentials: Credentials) -> bytes:
    return _encode(
        {
            mechanism.value: {
                "iterations": credential.iterations,
                "salt": b64encode(credential.salt).decode(),
                "server_key": b64encode(credential.server_key).decode(),
                "stored_key": b64encode(credential.stored_key).decode(),
            }
            for mechanism, credential in credentials.items()
        }
    )


def decode_user(path: str, value: bytes) -> Credentials:
    def build(fields: dict[str, Any]) -> Credentials:
        return {
            ScramMechanism(mechanism): ScramCredential(
                _bytes(credential["salt"]),
                _number(credential["iterations"]),
                _bytes(credential["stored_key"]),
                _bytes(credential["server_key"]),
            )
            for mechanism, credential in fields.items()
        }

    return _decode(path, value, build)


def encode_login_secret(secret: bytes) -> bytes:
    return _encode({"secret": b64encode(secret).decode()})


def decode_login_secret(value: bytes) -> bytes:
    return _decode(LOGIN_SECRET, value, lambda fields: _bytes(fields["secret"]))


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


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _bytes(value: Any) -> bytes:
    return b64decode(_text(value), validate=True)


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _broker_ids(values: Any) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(_number(value)) for value in values)


def _text_by_text(values: Any) -> Mapping[str, str]:
    return MappingProxyType({_text(key): _text(value) for key, value in values.items()})
