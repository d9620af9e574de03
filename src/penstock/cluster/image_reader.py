"""From the nodes of the coordination tree to a metadata image: all nodes, or those that have changed.

Both go through a draft, which begins empty or as the image before; every node that is read is put into it. An image is
whole only if nothing was committed while its nodes were read; `metadata_store.py` checks that.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from penstock.cluster import nodes
from penstock.cluster.coordination.contract import Coordination, Create, Node, parent_of
from penstock.cluster.decisions.settings import DYNAMIC_SETTINGS
from penstock.cluster.metadata import NO_LEADER, MetadataImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.group import GROUP_SETTINGS
from penstock.errors import ConfigError, ConflictError, CoordinationError
from penstock.ids import BrokerId

Found = Mapping[str, Node | None]
"""What was found at some paths; None where there is nothing."""

_PARENTS = (nodes.BROKERS, nodes.DATABASES, nodes.TOPICS, nodes.SETTINGS, nodes.USERS, nodes.ACLS, nodes.QUOTAS)
"""The image is made of what is right below these nodes."""
_SINGLE = (nodes.CLUSTER, nodes.CONTROLLER, nodes.LOGIN_SECRET)
"""And of these."""
_SECRET_BYTES = 32

# How many nodes to request at once: the answers come one after the other, so all cost one round trip.
_AT_ONCE = 256


async def make_roots(coordination: Coordination, cluster_id: str) -> None:
    """Makes the nodes that every tree has, where they are missing: all in one commit."""
    roots = {
        nodes.CLUSTER: nodes.encode_cluster(cluster_id),
        nodes.BROKERS: b"",
        nodes.TOPICS: b"",
        nodes.DATABASES: b"",
        nodes.SETTINGS: b"",
        nodes.ACLS: b"",
        nodes.QUOTAS: b"",
        nodes.USERS: b"",
        nodes.LOGIN_SECRET: nodes.encode_login_secret(secrets.token_bytes(_SECRET_BYTES)),
        nodes.DEFAULT_SETTINGS: nodes.encode_settings({}),
        nodes.PRODUCER_IDS: nodes.encode_next_producer_id(0),
        nodes.LEASES: b"",
        nodes.CONTROLLER: nodes.encode_controller(NO_LEADER, 0),
    }
    while True:
        found = await read(coordination, roots)
        missing = [Create(path, value) for path, value in roots.items() if found[path] is None]
        if not missing:
            return
        try:
            await coordination.commit(*missing)
        except ConflictError:
            # Another broker makes them at the same time.
            continue


async def refuse_empty_tree(coordination: Coordination, cluster_id: str) -> None:
    """A data folder that belongs to a cluster founds no other: it has records, and the tree would know of none."""
    if await coordination.get(nodes.CLUSTER) is None:
        raise ConfigError(f"the data folder belongs to cluster {cluster_id}, and the coordination tree is empty")


async def check_cluster(coordination: Coordination, expected: str | None) -> str:
    """The id of the cluster that the tree belongs to; a ConfigError if another one was expected."""
    node = await coordination.get(nodes.CLUSTER)
    if node is None:
        raise CoordinationError(f"node {nodes.CLUSTER} is missing from the coordination tree")
    found = nodes.decode_cluster(node.value)
    if expected is not None and found != expected:
        raise ConfigError(f"the coordination tree belongs to cluster {found}, the data folder to {expected}")
    return found


async def read(coordination: Coordination, paths: Iterable[str]) -> Found:
    """The nodes at these paths."""
    wanted = list(paths)
    found: dict[str, Node | None] = {}
    for at in range(0, len(wanted), _AT_ONCE):
        some = wanted[at : at + _AT_ONCE]
        found |= zip(some, await asyncio.gather(*(coordination.get(path) for path in some)), strict=True)
    return found


async def read_all(coordination: Coordination) -> Found:
    """All nodes that an image is made of."""
    paths = list(_SINGLE)
    for parent in _PARENTS:
        paths += [f"{parent}/{name}" for name in await coordination.children(parent)]
    return await read(coordination, paths)


def is_of_image(path: str) -> bool:
    """Whether what a node says is part of the image."""
    return path in _SINGLE or parent_of(path) in _PARENTS


def empty_image(cluster_id: str) -> MetadataImage:
    nothing: Mapping[str, str] = MappingProxyType({})
    return MetadataImage(
        0, cluster_id, MappingProxyType({}), NO_LEADER, MappingProxyType({}), MappingProxyType({}), nothing
    )


def with_found(image: MetadataImage, found: Found, version: int) -> MetadataImage:
    """The image with what was found in the place of what it said of these nodes."""
    draft = MetadataDraft(image)
    for path, node in found.items():
        parent = parent_of(path)
        if path == nodes.CONTROLLER and node is not None:
            draft.put_controller(*nodes.decode_controller(node.value))
        elif path == nodes.LOGIN_SECRET and node is not None:
            draft.put_login_secret(nodes.decode_login_secret(node.value))
        elif parent == nodes.USERS:
            user = nodes.user_of(path)
            draft.put_user(user, {} if node is None else nodes.decode_user(path, node.value))
        elif parent == nodes.BROKERS:
            _put_broker(draft, nodes.broker_of(path), node)
        elif parent == nodes.DATABASES:
            _put_database(draft, nodes.database_of(path), node)
        elif parent == nodes.TOPICS:
            _put_topic(draft, nodes.topic_of(path), node)
        elif parent == nodes.SETTINGS:
            _put_settings(draft, path, node)
        elif parent == nodes.ACLS:
            draft.put_acls(nodes.resource_of(path), () if node is None else nodes.decode_acls(path, node.value))
        elif parent == nodes.QUOTAS:
            draft.put_quota(nodes.quota_entity_of(path), {} if node is None else nodes.decode_quota(path, node.value))
    return draft.finish(version)


def _put_broker(draft: MetadataDraft, broker: BrokerId, node: Node | None) -> None:
    if node is not None:
        draft.put_broker(nodes.decode_broker(broker, node.value))
    elif broker in draft.brokers:
        draft.remove_broker(broker)


def _put_database(draft: MetadataDraft, name: str, node: Node | None) -> None:
    if node is not None:
        draft.put_database(nodes.decode_database(name, node.value))
    elif name in draft.databases:
        draft.remove_database(name)


def _put_topic(draft: MetadataDraft, name: str, node: Node | None) -> None:
    if node is not None:
        draft.put_topic(nodes.decode_topic(name, node.value))
    elif name in draft.topics:
        draft.remove_topic(name)


def _put_settings(draft: MetadataDraft, path: str, node: Node | None) -> None:
    group_id = nodes.group_of_settings(path)
    settings = {} if node is None else nodes.decode_settings(path, node.value)
    known = DYNAMIC_SETTINGS if group_id is None else GROUP_SETTINGS
    unknown = settings.keys() - known.keys()
    if unknown:
        raise CoordinationError(f"node {path} holds settings this version does not know: {sorted(unknown)}")
    if group_id is not None:
        draft.put_group_settings(group_id, settings)
        return
    broker = None if path == nodes.DEFAULT_SETTINGS else nodes.broker_of_settings(path)
    if node is not None or broker is None:
        draft.put_settings(broker, settings)
    elif broker in draft.brokers_with_settings:
        draft.remove_settings(broker)


async def load_next_producer_id(coordination: Coordination) -> tuple[int, int]:
    """The first producer id that is still free, and the version to take it at."""
    node = await coordination.get(nodes.PRODUCER_IDS)
    if node is None:
        raise CoordinationError(f"node {nodes.PRODUCER_IDS} is missing from the coordination tree")
    return nodes.decode_next_producer_id(node.value), node.version
