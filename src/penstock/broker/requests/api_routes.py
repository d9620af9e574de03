"""Which handler answers which API.

The broker creates handlers that share dependencies together, at the first request for one of their APIs. It imports
their modules, and the messages they use, only then, so it starts without code that no client needs yet. That is why the
imports stand inside the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker.coordinators import Coordinators
from penstock.broker.known_brokers import KnownBrokers
from penstock.broker.requests.client_limits import ClientLimits
from penstock.broker.requests.dispatch import MessageHandler
from penstock.clock import Clock
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.config.database_address import DatabaseAddress
from penstock.config.loader import Loaded
from penstock.delay.delays import Delays
from penstock.ids import BrokerId
from penstock.protocol import apis
from penstock.protocol.apis import Api
from penstock.replication.replicas import Replicas
from penstock.views.catalogue import Catalogue

if TYPE_CHECKING:
    from penstock.broker.permissions.access import Permissions
    from penstock.broker.permissions.table import Guards
    from penstock.sql.groups import DatabaseGroups
    from penstock.sql.passwords import PasswordKey


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDependencies:
    """What handlers are made from."""

    loaded: Loaded
    broker_id: BrokerId
    metadata: MetadataChanges
    replicas: Replicas
    catalogue: Catalogue
    delays: Delays
    coordinators: Coordinators
    brokers: KnownBrokers
    clock: Clock
    quotas: ClientLimits
    database_key: PasswordKey | None = None
    database_address: DatabaseAddress | None = None
    """Of the default database group."""
    databases: DatabaseGroups | None = None


MakeHandlers = Callable[[HandlerDependencies], Mapping[Api, MessageHandler]]


class ApiRoutes:
    """Handlers by API key, made at first use."""

    def __init__(self, dependencies: HandlerDependencies, permissions: Permissions | None = None) -> None:
        """Without `permissions` everything is allowed."""
        self._dependencies = dependencies
        self._guards: Guards | None = None
        if permissions is not None:
            from penstock.broker.permissions.table import Guards

            self._guards = Guards(permissions, creates_topics=dependencies.loaded.config.broker.auto_create_topics)
            self._guards.check(set(self.keys()))
        self._handlers: dict[int, MessageHandler] = {}

    def keys(self) -> Iterable[int]:
        """Every API that is answered."""
        return [api.key for api in _ROUTES]

    def find(self, api: Api) -> MessageHandler | None:
        handler = self._handlers.get(api.key)
        if handler is None and api in _ROUTES:
            made = _ROUTES[api](self._dependencies)
            guards = self._guards
            self._handlers |= {
                found.key: made[found] if guards is None else guards.before(found, made[found]) for found in made
            }
            handler = self._handlers[api.key]
        return handler


def _cluster(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.cluster import ClusterHandlers, announced

    config = given.loaded.config
    databases = given.databases
    without_writes = frozenset if databases is None else databases.without_writes
    handlers = ClusterHandlers(given.metadata, config.broker, config.limits, without_writes, given.quotas)
    return {
        apis.METADATA: announced(handlers.metadata, given.metadata, given.replicas, config.limits.topic_wait_ms),
        apis.DESCRIBE_CLUSTER: handlers.describe_cluster,
    }


def _topic_partitions(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.topic_partitions import TopicPartitionsHandlers

    return {apis.DESCRIBE_TOPIC_PARTITIONS: TopicPartitionsHandlers(given.metadata).describe_topic_partitions}


def _topics(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.config_descriptions import ConfigDescriptions
    from penstock.broker.handlers.topics import TopicHandlers

    config = given.loaded.config
    descriptions = ConfigDescriptions(given.loaded)
    handlers = TopicHandlers(given.metadata, config.broker, config.limits, descriptions, given.quotas, given.replicas)
    return {
        apis.CREATE_TOPICS: handlers.create_topics,
        apis.DELETE_TOPICS: handlers.delete_topics,
        apis.CREATE_PARTITIONS: handlers.create_partitions,
    }


def _reassignments(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.reassignments import ReassignmentHandlers

    handlers = ReassignmentHandlers(given.metadata, given.loaded.config.limits, given.replicas)
    return {
        apis.ELECT_LEADERS: handlers.elect_leaders,
        apis.ALTER_PARTITION_REASSIGNMENTS: handlers.alter_reassignments,
        apis.LIST_PARTITION_REASSIGNMENTS: handlers.list_reassignments,
    }


def _configs(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.config_descriptions import ConfigDescriptions
    from penstock.broker.database_group_settings import DatabaseGroupSettings
    from penstock.broker.handlers.configs import ConfigHandlers, carried_out

    handlers = ConfigHandlers(
        given.metadata,
        given.broker_id,
        ConfigDescriptions(given.loaded),
        DatabaseGroupSettings(given.metadata, given.database_key, given.database_address, given.databases),
        given.loaded.config.limits,
    )
    topic_wait_ms = given.loaded.config.limits.topic_wait_ms
    return {
        apis.DESCRIBE_CONFIGS: handlers.describe_configs,
        apis.ALTER_CONFIGS: carried_out(handlers.alter_configs, given.replicas, topic_wait_ms),
        apis.INCREMENTAL_ALTER_CONFIGS: carried_out(handlers.incremental_alter_configs, given.replicas, topic_wait_ms),
        apis.LIST_CONFIG_RESOURCES: handlers.list_config_resources,
    }


def _features(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.features import FeatureHandlers

    return {apis.UPDATE_FEATURES: FeatureHandlers().update_features}


def _offsets(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.offsets import OffsetHandlers

    handlers = OffsetHandlers(given.replicas, given.catalogue, given.delays, given.loaded.config.broker.data)
    return {
        apis.LIST_OFFSETS: handlers.list_offsets,
        apis.OFFSET_FOR_LEADER_EPOCH: handlers.offset_for_leader_epoch,
        apis.DELETE_RECORDS: handlers.delete_records,
        apis.DESCRIBE_LOG_DIRS: handlers.describe_log_dirs,
    }


def _producer_ids(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.producer_ids import ProducerIdHandlers

    return {apis.INIT_PRODUCER_ID: ProducerIdHandlers(given.metadata, given.coordinators.transactions).init_producer_id}


def _transactions(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.transactions import TransactionHandlers

    handlers = TransactionHandlers(given.coordinators, given.metadata, given.brokers, given.clock)
    return {
        apis.ADD_PARTITIONS_TO_TXN: handlers.add_partitions,
        apis.ADD_OFFSETS_TO_TXN: handlers.add_offsets,
        apis.TXN_OFFSET_COMMIT: handlers.commit_offsets,
        apis.END_TXN: handlers.end,
    }


def _transaction_admin(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.transaction_admin import TransactionAdminHandlers

    handlers = TransactionAdminHandlers(given.coordinators, given.replicas, given.brokers)
    return {
        apis.DESCRIBE_TRANSACTIONS: handlers.describe_transactions,
        apis.LIST_TRANSACTIONS: handlers.list_transactions,
        apis.DESCRIBE_PRODUCERS: handlers.describe_producers,
        apis.WRITE_TXN_MARKERS: handlers.write_markers,
    }


def _coordinators(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.find_coordinator import CoordinatorHandlers

    return {apis.FIND_COORDINATOR: CoordinatorHandlers(given.coordinators, given.metadata).find_coordinator}


def _groups(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.groups import GroupHandlers

    handlers = GroupHandlers(given.coordinators.groups.coordinator())
    return {
        apis.JOIN_GROUP: handlers.join_group,
        apis.SYNC_GROUP: handlers.sync_group,
        apis.HEARTBEAT: handlers.heartbeat,
        apis.LEAVE_GROUP: handlers.leave_group,
    }


def _consumer_groups(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.consumer_groups import ConsumerGroupHandlers

    handlers = ConsumerGroupHandlers(given.coordinators.groups.coordinator(), given.metadata)
    return {
        apis.CONSUMER_GROUP_HEARTBEAT: handlers.heartbeat,
        apis.CONSUMER_GROUP_DESCRIBE: handlers.describe,
    }


def _committed_offsets(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.committed_offsets import CommittedOffsetHandlers

    handlers = CommittedOffsetHandlers(
        given.coordinators.groups.coordinator(), given.coordinators.remote_groups, given.metadata, given.clock
    )
    return {
        apis.OFFSET_COMMIT: handlers.offset_commit,
        apis.OFFSET_FETCH: handlers.offset_fetch,
        apis.OFFSET_DELETE: handlers.offset_delete,
    }


def _group_admin(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.group_admin import GroupAdminHandlers

    handlers = GroupAdminHandlers(given.coordinators.groups.coordinator())
    return {
        apis.LIST_GROUPS: handlers.list_groups,
        apis.DESCRIBE_GROUPS: handlers.describe_groups,
        apis.DELETE_GROUPS: handlers.delete_groups,
    }


def _acls(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.acls import AclHandlers

    handlers = AclHandlers(given.metadata, is_enabled=given.loaded.config.security.has_authorizer)
    return {
        apis.DESCRIBE_ACLS: handlers.describe_acls,
        apis.CREATE_ACLS: handlers.create_acls,
        apis.DELETE_ACLS: handlers.delete_acls,
    }


def _client_quotas(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.client_quotas import ClientQuotaHandlers

    handlers = ClientQuotaHandlers(given.metadata)
    return {
        apis.DESCRIBE_CLIENT_QUOTAS: handlers.describe_client_quotas,
        apis.ALTER_CLIENT_QUOTAS: handlers.alter_client_quotas,
    }


def _sasl(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.sasl import SaslHandlers

    handlers = SaslHandlers()
    return {apis.SASL_HANDSHAKE: handlers.handshake, apis.SASL_AUTHENTICATE: handlers.authenticate}


def _users(given: HandlerDependencies) -> Mapping[Api, MessageHandler]:
    from penstock.broker.handlers.users import UserHandlers

    handlers = UserHandlers(given.metadata)
    return {
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS: handlers.describe,
        apis.ALTER_USER_SCRAM_CREDENTIALS: handlers.alter,
    }


_ROUTES: Mapping[Api, MakeHandlers] = {
    apis.SASL_HANDSHAKE: _sasl,
    apis.SASL_AUTHENTICATE: _sasl,
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: _users,
    apis.ALTER_USER_SCRAM_CREDENTIALS: _users,
    apis.METADATA: _cluster,
    apis.DESCRIBE_CLUSTER: _cluster,
    apis.DESCRIBE_TOPIC_PARTITIONS: _topic_partitions,
    apis.CREATE_TOPICS: _topics,
    apis.DELETE_TOPICS: _topics,
    apis.CREATE_PARTITIONS: _topics,
    apis.ELECT_LEADERS: _reassignments,
    apis.ALTER_PARTITION_REASSIGNMENTS: _reassignments,
    apis.LIST_PARTITION_REASSIGNMENTS: _reassignments,
    apis.DESCRIBE_ACLS: _acls,
    apis.CREATE_ACLS: _acls,
    apis.DELETE_ACLS: _acls,
    apis.DESCRIBE_CONFIGS: _configs,
    apis.ALTER_CONFIGS: _configs,
    apis.INCREMENTAL_ALTER_CONFIGS: _configs,
    apis.LIST_CONFIG_RESOURCES: _configs,
    apis.UPDATE_FEATURES: _features,
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
    apis.OFFSET_COMMIT: _committed_offsets,
    apis.OFFSET_FETCH: _committed_offsets,
    apis.OFFSET_DELETE: _committed_offsets,
    apis.LIST_GROUPS: _group_admin,
    apis.DESCRIBE_GROUPS: _group_admin,
    apis.DELETE_GROUPS: _group_admin,
    apis.DESCRIBE_CLIENT_QUOTAS: _client_quotas,
    apis.ALTER_CLIENT_QUOTAS: _client_quotas,
}
