"""What consumers of a classic group tell each other through the broker, as bytes in JoinGroup and SyncGroup.

The broker reads them to describe groups and to know which topics a group is subscribed to. Newer versions only add
fields at the end, so an unknown version is read as the newest one known.
"""

from __future__ import annotations

from penstock.protocol.schema import NEVER, i32, message, since, struct
from penstock.protocol.versioned import Versioned

# The protocol type, in JoinGroup, of groups that use these messages.
PROTOCOL_TYPE = "consumer"


@struct
class TopicPartition:
    topic: str
    partitions: tuple[i32, ...]


@message(flexible_from=NEVER)
class ConsumerProtocolSubscription:
    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = since(1, default=())
    generation_id: i32 = since(2, default=-1)
    rack_id: str | None = since(3, default=None)


@message(flexible_from=NEVER)
class ConsumerProtocolAssignment:
    assigned_partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


SUBSCRIPTION = Versioned(ConsumerProtocolSubscription, oldest=0, newest=3, written=3, grows=True)
ASSIGNMENT = Versioned(ConsumerProtocolAssignment, oldest=0, newest=3, written=3, grows=True)
