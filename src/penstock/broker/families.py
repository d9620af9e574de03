"""Which handler answers which API.

Handlers come in families that share collaborators. A family, with the messages it speaks, is loaded when it is first
asked for: a broker is ready before it has read code that nobody needs yet. That is why the imports stand inside the
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.broker.context import RequestContext
from penstock.broker.coordinators import Coordinators
from penstock.broker.dispatch import MessageHandler
from penstock.clock import Clock
from penstock.cluster.controller import Controller
from penstock.config.loader import Loaded
from penstock.delay.delays import Delays
from penstock.ids import BrokerId
from penstock.protocol import apis
from penstock.protocol.apis import Api
from penstock.replication.replicas import Replicas
from penstock.views.catalogue import Catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class Collaborators:
    """What handlers are made from."""

    loaded: Loaded
    broker_id: BrokerId
    controller: Controller
    replicas: Replicas
    catalogue: Catalogue
    delays: Delays
    coordinators: Coordinators
    clock: Clock


Family = Callable[[Collaborators], Mapping[Api, MessageHandler]]


class Families:
    """Handlers by API key, made at first use."""

    def __init__(self, collaborators: Collaborators) -> None:
        self._collaborators = collaborators
        self._handlers: dict[int, MessageHandler] = {}

    def keys(self) -> Iterable[int]:
        """Every API that is answered."""
        return [api.key for api in _FAMILY_OF]

    def find(self, api: Api) -> MessageHandler | None:
        handler = self._handlers.get(api.key)
        if handler is None and api in _FAMILY_OF:
            made = _FAMILY_OF[api](self._collaborators)
            self._handlers |= {found.key: made[found] for found in made}
            handler = self._handlers[api.key]
        return handler


def _applied(given: Collaborators, handler: MessageHandler) -> MessageHandler:
    """A change is answered only when this broker has carried it out."""

    async def handle(request: Any, context: RequestContext) -> Any:
        response = await handler(request, context)
        await given.replicas.applied()
        return response

    return handle


def _cluster(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.cluster import ClusterHandlers

    config = given.loaded.config
    handlers = ClusterHandlers(given.controller, config.broker, config.limits)
    return {
        apis.METADATA: _applied(given, handlers.metadata),
        apis.DESCRIBE_CLUSTER: handlers.describe_cluster,
    }


def _pages(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.pages import PageHandlers

    return {apis.DESCRIBE_TOPIC_PARTITIONS: PageHandlers(given.controller).describe_topic_partitions}


def _topics(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.descriptions import Descriptions
    from penstock.broker.handlers.topics import TopicHandlers

    config = given.loaded.config
    handlers = TopicHandlers(given.controller, config.broker, config.limits, Descriptions(given.loaded))
    return {
        apis.CREATE_TOPICS: _applied(given, handlers.create_topics),
        apis.DELETE_TOPICS: _applied(given, handlers.delete_topics),
        apis.CREATE_PARTITIONS: _applied(given, handlers.create_partitions),
    }


def _reassignments(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.reassignments import ReassignmentHandlers

    handlers = ReassignmentHandlers(given.controller, given.loaded.config.limits)
    return {
        apis.ELECT_LEADERS: _applied(given, handlers.elect_leaders),
        apis.ALTER_PARTITION_REASSIGNMENTS: _applied(given, handlers.alter_reassignments),
        apis.LIST_PARTITION_REASSIGNMENTS: handlers.list_reassignments,
    }


def _configs(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.descriptions import Descriptions
    from penstock.broker.handlers.configs import ConfigHandlers

    handlers = ConfigHandlers(given.controller, given.broker_id, Descriptions(given.loaded))
    return {
        apis.DESCRIBE_CONFIGS: handlers.describe_configs,
        apis.ALTER_CONFIGS: _applied(given, handlers.alter_configs),
        apis.INCREMENTAL_ALTER_CONFIGS: _applied(given, handlers.incremental_alter_configs),
        apis.LIST_CONFIG_RESOURCES: handlers.list_config_resources,
    }


def _offsets(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.offsets import OffsetHandlers

    handlers = OffsetHandlers(given.replicas, given.catalogue, given.delays, given.loaded.config.broker.data)
    return {
        apis.LIST_OFFSETS: handlers.list_offsets,
        apis.OFFSET_FOR_LEADER_EPOCH: handlers.offset_for_leader_epoch,
        apis.DELETE_RECORDS: handlers.delete_records,
        apis.DESCRIBE_LOG_DIRS: handlers.describe_log_dirs,
    }


def _producer_ids(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.producer_ids import ProducerIdHandlers

    return {
        apis.INIT_PRODUCER_ID: ProducerIdHandlers(given.controller, given.coordinators.transactions).init_producer_id
    }


def _transactions(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.transactions import TransactionHandlers

    handlers = TransactionHandlers(given.coordinators, given.controller, given.clock)
    return {
        apis.ADD_PARTITIONS_TO_TXN: handlers.add_partitions,
        apis.ADD_OFFSETS_TO_TXN: handlers.add_offsets,
        apis.TXN_OFFSET_COMMIT: handlers.commit_offsets,
        apis.END_TXN: handlers.end,
    }


def _transaction_admin(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.transaction_admin import TransactionAdminHandlers

    handlers = TransactionAdminHandlers(given.coordinators, given.replicas)
    return {
        apis.DESCRIBE_TRANSACTIONS: handlers.describe_transactions,
        apis.LIST_TRANSACTIONS: handlers.list_transactions,
        apis.DESCRIBE_PRODUCERS: handlers.describe_producers,
        apis.WRITE_TXN_MARKERS: handlers.write_markers,
    }


def _coordinators(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.coordinators import CoordinatorHandlers

    return {apis.FIND_COORDINATOR: CoordinatorHandlers(given.coordinators, given.controller).find_coordinator}


def _groups(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.groups import GroupHandlers

    handlers = GroupHandlers(given.coordinators.groups.coordinator())
    return {
        apis.JOIN_GROUP: handlers.join_group,
        apis.SYNC_GROUP: handlers.sync_group,
        apis.HEARTBEAT: handlers.heartbeat,
        apis.LEAVE_GROUP: handlers.leave_group,
    }


def _consumer_groups(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.consumer_groups import ConsumerGroupHandlers

    handlers = ConsumerGroupHandlers(given.coordinators.groups.coordinator(), given.controller)
    return {
        apis.CONSUMER_GROUP_HEARTBEAT: handlers.heartbeat,
        apis.CONSUMER_GROUP_DESCRIBE: handlers.describe,
    }


def _commits(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.commits import CommitHandlers

    handlers = CommitHandlers(given.coordinators.groups.coordinator(), given.controller, given.clock)
    return {
        apis.OFFSET_COMMIT: handlers.offset_commit,
        apis.OFFSET_FETCH: handlers.offset_fetch,
        apis.OFFSET_DELETE: handlers.offset_delete,
    }


def _group_admin(given: Collaborators) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.group_admin import GroupAdminHandlers

    handlers = GroupAdminHandlers(given.coordinators.groups.coordinator())
    return {
        apis.LIST_GROUPS: handlers.list_groups,
        apis.DESCRIBE_GROUPS: handlers.describe_groups,
        apis.DELETE_GROUPS: handlers.delete_groups,
    }


_FAMILY_OF: Mapping[Api, Family] = {
    apis.METADATA: _cluster,
    apis.DESCRIBE_CLUSTER: _cluster,
    apis.DESCRIBE_TOPIC_PARTITIONS: _pages,
    apis.CREATE_TOPICS: _topics,
    apis.DELETE_TOPICS: _topics,
    apis.CREATE_PARTITIONS: _topics,
    apis.ELECT_LEADERS: _reassignments,
    apis.ALTER_PARTITION_REASSIGNMENTS: _reassignments,
    apis.LIST_PARTITION_REASSIGNMENTS: _reassignments,
    apis.DESCRIBE_CONFIGS: _configs,
    apis.ALTER_CONFIGS: _configs,
    apis.INCREMENTAL_ALTER_CONFIGS: _configs,
    apis.LIST_CONFIG_RESOURCES: _configs,
    apis.LIST_OFFSETS: _offsets,
    apis.OFFSET_FOR_LEADER_EPOCH: _offsets,
    apis.DELETE_RECORDS: _offsets,
    apis.DESCRIBE_LOG_DIRS: _offsets,
    apis.INIT_PRODUCER_ID: _producer_ids,
    apis.ADD_PARTITIONS_TO_TXN: _transactions,
    apis.ADD_OFFSETS_TO_TXN: _transactions,
    apis.TXN_OFFSET_COMMIT: _transactions,
    apis.END_TXN: _transactions,
    apis.DESCRIBE_TRANSACTIONS: _transaction_admin,
    apis.LIST_TRANSACTIONS: _transaction_admin,
    apis.DESCRIBE_PRODUCERS: _transaction_admin,
    apis.WRITE_TXN_MARKERS: _transaction_admin,
    apis.FIND_COORDINATOR: _coordinators,
    apis.JOIN_GROUP: _groups,
    apis.SYNC_GROUP: _groups,
    apis.HEARTBEAT: _groups,
    apis.LEAVE_GROUP: _groups,
    apis.CONSUMER_GROUP_HEARTBEAT: _consumer_groups,
    apis.CONSUMER_GROUP_DESCRIBE: _consumer_groups,
    apis.OFFSET_COMMIT: _commits,
    apis.OFFSET_FETCH: _commits,
    apis.OFFSET_DELETE: _commits,
    apis.LIST_GROUPS: _group_admin,
    apis.DESCRIBE_GROUPS: _group_admin,
    apis.DELETE_GROUPS: _group_admin,
}
