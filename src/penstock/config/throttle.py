"""Kafka's settings that slow down the copying of replicas: how fast for a broker, and which replicas of a topic.

    follower.replication.throttled.rate       of a broker: bytes a second that it fetches for such replicas
    leader.replication.throttled.rate         of a broker: bytes a second that each other one fetches from it
    follower.replication.throttled.replicas   of a topic: PARTITION:BROKER pairs, * for all

`kafka-reassign-partitions --throttle` sets them before a move and removes them after it. New replicas of a move are
always slowed; a topic can name others, which are slowed while they are not in sync.
"""

from __future__ import annotations

from penstock.config.setting import LONG_MAX, Kind, Setting

FOLLOWER_RATE = Setting(
    name="follower.replication.throttled.rate",
    kind=Kind.LONG,
    default=str(LONG_MAX),
    low=0,
    doc="Bytes a second that this broker fetches for new replicas; not set, cluster.move_bytes_per_second counts.",
)
LEADER_RATE = Setting(
    name="leader.replication.throttled.rate",
    kind=Kind.LONG,
    default=str(LONG_MAX),
    low=0,
    doc="Bytes a second that each other broker fetches from this one for new replicas.",
)
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

_ALL = "*"


def check_replicas(text: str) -> str:
    """`*`, nothing, or partition:broker pairs, as Kafka spells them."""
    pairs = [pair.split(":") for pair in text.split(",")] if text not in ("", _ALL) else []
    if not all(len(pair) == 2 and all(part.strip().isdecimal() for part in pair) for pair in pairs):
        raise ValueError("*, nothing, or PARTITION:BROKER pairs such as 0:1,1:1")
    return text


def names_replica(text: str, partition: int, broker: int) -> bool:
    """Whether the text of such a setting names this replica of the topic."""
    if text.strip() in ("", _ALL):
        return text.strip() == _ALL
    pairs = (pair.split(":") for pair in text.split(","))
    return any((int(index), int(holder)) == (partition, broker) for index, holder in pairs)
