"""Whether every broker knows a new topic: others than the one that created it learn of it a moment later."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.admin.cluster_nodes import cluster_nodes
from penstock.admin.connection import AdminConnection, Deadline
from penstock.admin.errors import AdminError
from penstock.admin.wire import call
from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

_VERSION = 9
_BROKER_WAIT_S = 1.0
"""A broker that does not answer for so long has stopped, or knows the topic and is making its logs."""


def is_known_everywhere(connection: AdminConnection, names: Sequence[str], deadline: Deadline) -> bool:
    """Whether no broker that answers says that it does not know one of these topics."""
    topics = tuple(MetadataRequestTopic(name=name) for name in names)
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    try:
        addresses = cluster_nodes(connection, deadline).addresses.values()
    except AdminError:
        return True
    for address in addresses:
        patience = Deadline(min(deadline.left_s, _BROKER_WAIT_S))
        try:
            told = call(address, apis.METADATA, _VERSION, request, MetadataResponse, connection.settings, patience)
        except AdminError:
            continue
        if any(topic.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION for topic in told.topics):
            return False
    return True
