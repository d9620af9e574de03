"""From a draft to the commits that make it the cluster's metadata; the counterpart of `image_reader.py`.

A change that does not fit into one commit is made in several, and other brokers see what is between them. So the order
counts: a broker that joins is committed before what it gets, one that leaves after what it leaves. A lease is taken or
deleted in the same commit as its broker's node. Conditions are part of every commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.cluster import nodes
from penstock.cluster.coordination.contract import MAX_COMMIT_BYTES, Change, Create, Delete, Put, commit_bytes
from penstock.cluster.metadata_draft import MetadataDraft

Versions = Mapping[str, int]
"""The version at which each node of the image was read, by path."""


def commits(draft: MetadataDraft, versions: Versions) -> list[list[Change]]:
    """The changes of each commit, in the order in which they are made."""
    brokers: list[Change] = [*_written(_brokers(draft), versions), *draft.beside]
    others = list(_written(_others(draft), versions))
    is_coming = any(broker in draft.alive for broker in draft.touched_brokers)
    # What belongs together is one piece; everything else may be torn apart.
    pieces = [[change] for change in others]
    if brokers:
        pieces.insert(0 if is_coming else len(pieces), brokers)
    made: list[list[Change]] = []
    room = 0
    for piece in pieces:
        size = commit_bytes(piece)
        if not made or size > room:
            made.append([*draft.conditions])
            room = MAX_COMMIT_BYTES - commit_bytes(draft.conditions)
        made[-1] += piece
        room -= size
    return made


def _brokers(draft: MetadataDraft) -> Iterator[tuple[str, bytes | None]]:
    for broker in draft.touched_brokers:
        info = draft.brokers.get(broker)
        yield nodes.broker_path(broker), None if info is None else nodes.encode_broker(info)
    if draft.is_controller_touched:
        yield nodes.CONTROLLER, nodes.encode_controller(*draft.controller)


def _others(draft: MetadataDraft) -> Iterator[tuple[str, bytes | None]]:
    # Before the topics: a broker that sees the new epoch of a partition knows the primary of its database.
    for group in draft.touched_databases:
        database = draft.databases.get(group)
        yield nodes.database_path(group), None if database is None else nodes.encode_database(database)
    for name in draft.touched_topics:
        topic = draft.topics.get(name)
        yield nodes.topic_path(name), None if topic is None else nodes.encode_topic(topic)
    for owner in draft.touched_settings:
        yield nodes.settings_path(owner), nodes.encode_settings(draft.settings(owner))
    for resource in draft.touched_acls:
        entries = draft.acls.get(resource)
        yield nodes.acls_path(resource), nodes.encode_acls(entries) if entries else None
    for user in draft.touched_users:
        credentials = draft.users.get(user)
        yield nodes.user_path(user), nodes.encode_user(credentials) if credentials else None
    for group_id in draft.touched_groups:
        settings = draft.group_settings(group_id)
        yield nodes.group_settings_path(group_id), nodes.encode_settings(settings) if settings else None
    for entity in draft.touched_quotas:
        limits = draft.quotas.get(entity)
        yield nodes.quota_path(entity), None if limits is None else nodes.encode_quota(limits)


def _written(values: Iterator[tuple[str, bytes | None]], versions: Versions) -> Iterator[Change]:
    for path, value in values:
        version = versions.get(path)
        if value is None:
            if version is not None:
                yield Delete(path, version)
        elif version is None:
            yield Create(path, value)
        else:
            yield Put(path, value, version)
