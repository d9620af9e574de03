"""Keeps the tables `topic` and `db_node` true: the controller writes them from the metadata, and what it sees itself of
the servers of databases.

A new controller compares everything that is stored, and raises the epoch by which its predecessors are fenced. After
that it writes what differs from the image that it wrote last. The rules are in `docs/internals/sql.md`, "Metadata
tables".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from penstock.clock import Clock
from penstock.cluster.metadata import DEFAULT_DATABASE, DatabaseGroupInfo, DatabaseServer, MetadataImage, TopicImage
from penstock.config.database_address import DatabaseAddress
from penstock.ids import TopicId
from penstock.sql.dialects.dialect import Row
from penstock.sql.groups import DatabaseGroups
from penstock.sql.server_status import ServerStatus
from penstock.storage.sql import metadata_tables
from penstock.storage.sql.copy_loop import CopyLoop
from penstock.yielding import yielding

_PRIMARY, _REPLICA = "primary", "replica"
_NOT_ASKED = ServerStatus(None)


class ClusterTables:
    """Writes while this broker is the controller."""

    def __init__(
        self,
        databases: DatabaseGroups,
        image: Callable[[], MetadataImage],
        controller_epoch: Callable[[], int | None],
        storage_of: Callable[[TopicImage, MetadataImage], str],
        clock: Clock,
    ) -> None:
        """`controller_epoch` is None while this broker is not the controller."""
        self._databases = databases
        self._image = image
        self._controller_epoch = controller_epoch
        self._storage_of = storage_of
        self._clock = clock
        self._written_epoch: int | None = None
        self._written_version = -1
        self._written: dict[TopicId, TopicImage] = {}
        """The topics as they are in the table."""
        self._written_nodes: list[Row] = []
        self._loop = CopyLoop("topics and databases", databases.default.primary.database, self._write, clock)

    def start(self) -> None:
        self._loop.start()

    async def close(self) -> None:
        await self._loop.close()

    async def _write(self, must_compare: bool) -> None:
        epoch, image = self._controller_epoch(), self._image()
        if epoch is None:
            return
        must_compare = must_compare or epoch != self._written_epoch
        nodes = node_rows(self._databases.default.primary.address, image.databases, self._databases.status)
        if (image.version, nodes) == (self._written_version, self._written_nodes) and not must_compare:
            return
        written = {} if must_compare else self._written
        topics = {topic.id: topic for topic in image.topics.values()}
        rows = [
            topic_row(image, topic, self._storage_of(topic, image), self._clock.now_ms())
            async for topic in yielding(topics.values())
            # What did not change is the same object in every image; what a view shows may be another topic's change.
            if topic is not written.get(topic.id) or topic.view_of is not None
        ]
        changed = {row[0] for row in rows} | {str(topic_id) for topic_id in written if topic_id not in topics}
        work = partial(
            metadata_tables.write_cluster,
            topics=rows,
            topic_ids=None if must_compare else changed,
            nodes=nodes,
            controller_epoch=epoch,
        )
        self._written_epoch = None
        if await self._loop.run(work):
            self._written_epoch, self._written_version, self._written = epoch, image.version, topics
            self._written_nodes = nodes


def topic_row(image: MetadataImage, topic: TopicImage, storage: str, now_ms: int) -> Row:
    seen = image.seen(topic.name) or topic
    return (
        str(topic.id),
        topic.name,
        len(seen.partitions),
        storage,
        topic.view_of,
        int(topic.is_internal),
        json.dumps(dict(topic.overrides), sort_keys=True),
        now_ms,
    )


def node_rows(
    default: DatabaseAddress,
    groups: Mapping[str, DatabaseGroupInfo],
    status: Callable[[str], Sequence[ServerStatus]],
) -> list[Row]:
    """One row for each server of each group, with what `status` knows of it; passwords are in none."""
    default_group = DatabaseGroupInfo(DEFAULT_DATABASE, (DatabaseServer(default.public_text),))
    rows: list[Row] = []
    for group in (default_group, *groups.values()):
        statuses = status(group.name)
        for position, server in enumerate(group.servers):
            address, is_primary = DatabaseAddress.parse(server.address), position == group.primary
            found = statuses[position] if position < len(statuses) else _NOT_ASKED
            rows.append(
                (
                    group.name,
                    position,
                    _PRIMARY if is_primary else _REPLICA,
                    address.dialect.value,
                    address.host,
                    address.port,
                    address.database,
                    address.user,
                    found.state(is_primary=is_primary),
                    int(group.is_draining),
                )
            )
    return rows
