"""The topics that members of a classic group subscribe to, read from the metadata they send to their leader."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import ProtocolError
from penstock.groups.classic.members import ClassicMember
from penstock.protocol.messages.consumer_protocol import SUBSCRIPTION


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The subscribed topics of a consumer; None for metadata that is not a consumer's."""
    try:
        return frozenset(SUBSCRIPTION.decode(metadata).topics)
    except ProtocolError:
        return None


def topics_of_all(members: Iterable[ClassicMember], protocol: str) -> frozenset[str] | None:
    """The topics of all members together; None if the metadata of one cannot be parsed."""
    topics: set[str] = set()
    for member in members:
        wanted = topics_of(member.metadata_of(protocol))
        if wanted is None:
            return None
        topics |= wanted
    return frozenset(topics)


def is_same(before: bytes, after: bytes) -> bool:
    """Whether a returning member wants what it wanted.

    Only its topics count for a consumer: the partitions that it says it owns differ after every restart.
    """
    if before == after:
        return True
    wanted = topics_of(after)
    return wanted is not None and wanted == topics_of(before)
