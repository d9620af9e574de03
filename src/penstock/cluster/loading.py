"""From the coordination tree to a metadata image, making the tree's first nodes where they are missing."""

from __future__ import annotations

from types import MappingProxyType

from penstock.cluster import nodes
from penstock.cluster.coordination import Coordination, Create
from penstock.cluster.metadata import MetadataImage
from penstock.cluster.settings import DYNAMIC_SETTINGS
from penstock.config.group import GROUP_SETTINGS
from penstock.errors import ConfigError, CoordinationError
from penstock.ids import BrokerId

# The version at which each node of the image was read, by path.
Versions = dict[str, int]


async def load(
    coordination: Coordination, cluster_id: str, controller: BrokerId, image_version: int
) -> tuple[MetadataImage, Versions]:
    """The image that the tree describes, and the versions to change it at."""
    await _make_roots(coordination, cluster_id)
    versions: Versions = {}

    async def read(path: str) -> bytes:
        node = await coordination.get(path)
        if node is None:
            raise CoordinationError(f"node {path} vanished while the coordination tree was read")
        versions[path] = node.version
        return node.value

    found = nodes.decode_cluster(await read(nodes.CLUSTER))
    if found != cluster_id:
        raise ConfigError(f"the coordination tree belongs to cluster {found}, the data folder to {cluster_id}")
    broker_ids = [BrokerId(int(name)) for name in await coordination.children(nodes.BROKERS)]
    brokers = {id: nodes.decode_broker(id, await read(nodes.broker_path(id))) for id in broker_ids}
    topics = {
        name: nodes.decode_topic(name, await read(nodes.topic_path(name)))
        for name in await coordination.children(nodes.TOPICS)
    }
    settings = {}
    settings_by_group = {}
    for name in await coordination.children(nodes.SETTINGS):
        path = f"{nodes.SETTINGS}/{name}"
        found_settings = nodes.decode_settings(path, await read(path))
        group_id = nodes.group_of_settings(path)
        if group_id is None:
            settings[path] = found_settings
        else:
            settings_by_group[group_id] = found_settings
        known = DYNAMIC_SETTINGS if group_id is None else GROUP_SETTINGS
        unknown = found_settings.keys() - known.keys()
        if unknown:
            raise CoordinationError(f"node {path} holds settings this version does not know: {sorted(unknown)}")
    image = MetadataImage(
        version=image_version,
        cluster_id=cluster_id,
        brokers=MappingProxyType(brokers),
        controller=controller,
        topics=MappingProxyType(topics),
        topic_names_by_id=MappingProxyType({topic.id: name for name, topic in topics.items()}),
        broker_settings=settings.pop(nodes.DEFAULT_SETTINGS),
        settings_by_broker=MappingProxyType(
            {nodes.broker_of_settings(path): values for path, values in settings.items()}
        ),
        settings_by_group=MappingProxyType(settings_by_group),
    )
    return image, versions


async def load_next_producer_id(coordination: Coordination) -> tuple[int, int]:
    """The first producer id that is still free, and the version to take it at."""
    node = await coordination.get(nodes.PRODUCER_IDS)
    if node is None:
        raise CoordinationError(f"node {nodes.PRODUCER_IDS} is missing from the coordination tree")
    return nodes.decode_next_producer_id(node.value), node.version


async def _make_roots(coordination: Coordination, cluster_id: str) -> None:
    if await coordination.get(nodes.CLUSTER) is not None:
        return
    # All in one commit: a crash leaves a tree with all of its roots or an empty one.
    await coordination.commit(
        Create(nodes.CLUSTER, nodes.encode_cluster(cluster_id)),
        Create(nodes.BROKERS, b""),
        Create(nodes.TOPICS, b""),
        Create(nodes.SETTINGS, b""),
        Create(nodes.DEFAULT_SETTINGS, nodes.encode_settings({})),
        Create(nodes.PRODUCER_IDS, nodes.encode_next_producer_id(0)),
    )
