"""What every call needs: the one place that says so. `docs/reference/permissions.md` is generated from it.

A row has the needs of a call, each a choice of which one suffices, what is answered without them, and the guard that
asks for them. No call is without a row: a broker with an authorizer does not start if one is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.broker.permissions import group_guards, settings_guards, topic_guards, transaction_guards
from penstock.broker.permissions.access import Access, Permissions
from penstock.broker.permissions.guard import Guard, Handler, Need, on_cluster, unguarded
from penstock.broker.requests.context import RequestContext
from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.apis import Api
from penstock.protocol.messages.alter_client_quotas import AlterClientQuotasResponse, AlterClientQuotasResult
from penstock.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from penstock.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from penstock.protocol.messages.create_acls import AclCreationResult, CreateAclsResponse
from penstock.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsResponse
from penstock.protocol.messages.describe_acls import DescribeAclsResponse
from penstock.protocol.messages.describe_client_quotas import DescribeClientQuotasResponse
from penstock.protocol.messages.describe_log_dirs import DescribeLogDirsResponse
from penstock.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsResponse
from penstock.protocol.messages.elect_leaders import ElectLeadersResponse
from penstock.protocol.messages.list_config_resources import ListConfigResourcesResponse
from penstock.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsResponse
from penstock.protocol.messages.update_features import UpdateFeaturesResponse
from penstock.security.acls import Operation, ResourceType

Choice = tuple[Need, ...]
"""Needs of which one suffices."""

_DENIED = "Cluster authorization failed."


@dataclass(frozen=True, slots=True)
class Row:
    """One call."""

    needs: tuple[Choice, ...]
    guard: Guard
    note: str = ""
    """For readers of the table: what is left out instead of denied, what holds beside."""
    from_brokers: bool = False
    """Whether brokers send it to each other: from the inter-broker listener it needs nothing else."""


def _need(operation: Operation, type_: ResourceType) -> Choice:
    return (Need(operation, type_),)


READ_TOPIC = _need(Operation.READ, ResourceType.TOPIC)
WRITE_TOPIC = _need(Operation.WRITE, ResourceType.TOPIC)
DESCRIBE_TOPIC = _need(Operation.DESCRIBE, ResourceType.TOPIC)
DELETE_TOPIC = _need(Operation.DELETE, ResourceType.TOPIC)
ALTER_TOPIC = _need(Operation.ALTER, ResourceType.TOPIC)
READ_GROUP = _need(Operation.READ, ResourceType.GROUP)
DESCRIBE_GROUP = _need(Operation.DESCRIBE, ResourceType.GROUP)
DELETE_GROUP = _need(Operation.DELETE, ResourceType.GROUP)
WRITE_ID = _need(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
DESCRIBE_ID = _need(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
ALTER_CLUSTER = _need(Operation.ALTER, ResourceType.CLUSTER)
DESCRIBE_CLUSTER = _need(Operation.DESCRIBE, ResourceType.CLUSTER)
CLUSTER_ACTION = _need(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
CREATE = _need(Operation.CREATE, ResourceType.TOPIC) + _need(Operation.CREATE, ResourceType.CLUSTER)
_OF_SETTINGS = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
DESCRIBE_SETTINGS = tuple(Need(Operation.DESCRIBE_CONFIGS, type_) for type_ in _OF_SETTINGS)
ALTER_SETTINGS = tuple(Need(Operation.ALTER_CONFIGS, type_) for type_ in _OF_SETTINGS)

_SETTINGS_NOTE = (
    "on the topic or group whose settings they are, on the cluster for those of brokers, loggers and database groups"
)
_ALTER_NOTE = (
    f"{_SETTINGS_NOTE}; penstock.partitions.retired needs ALTER on the topic, and penstock.draining ALTER on the "
    "cluster, beside it; settings of a view need READ on its base beside it"
)


def _refused_creations(request: Any, context: RequestContext, code: Code) -> CreateAclsResponse:
    refused = AclCreationResult(error_code=code, error_message=_DENIED)
    return CreateAclsResponse(results=(refused,) * len(request.creations))


def _refused_filters(request: Any, context: RequestContext, code: Code) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(error_code=code, error_message=_DENIED)
    return DeleteAclsResponse(filter_results=(refused,) * len(request.filters))


def _refused_quotas(request: Any, context: RequestContext, code: Code) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=tuple(
            AlterClientQuotasResult(error_code=code, error_message=_DENIED, entity=entry.entity)
            for entry in request.entries
        )
    )


def _refused_users(request: Any, context: RequestContext, code: Code) -> AlterUserScramCredentialsResponse:
    users = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
    return AlterUserScramCredentialsResponse(
        results=tuple(
            AlterUserScramCredentialsResult(user=user, error_code=code, error_message=_DENIED) for user in users
        )
    )


def _with_message(response: Any) -> Any:
    return lambda request, context, code: response(error_code=code, error_message=_DENIED)


def table(*, creates_topics: bool = True) -> Mapping[Api, Row]:
    """The rows by call; `creates_topics` says whether the broker creates a missing topic that a client requests."""
    return {
        apis.PRODUCE: Row(
            (WRITE_TOPIC, WRITE_ID),
            unguarded,
            "the transactional id if the records are part of a transaction; delaying a message and cancelling it are "
            "messages too",
        ),
        apis.FETCH: Row(
            (READ_TOPIC,),
            unguarded,
            "a view needs READ on the view, not on its base; topics of delayed messages need READ on the topic that "
            "these are for; to fetch as a follower takes CLUSTER_ACTION, which brokers alone have",
            from_brokers=True,
        ),
        apis.LIST_OFFSETS: Row((DESCRIBE_TOPIC,), topic_guards.list_offsets),
        apis.METADATA: Row(
            (DESCRIBE_TOPIC,),
            topic_guards.MetadataGuard(creates_topics=creates_topics),
            "of all topics, those that may not be described are left out; a topic that is created on demand needs "
            "CREATE on the topic or the cluster",
        ),
        apis.OFFSET_COMMIT: Row(
            (READ_GROUP, READ_TOPIC), group_guards.offset_commit, "the same to reset the offsets of a running group"
        ),
        apis.OFFSET_FETCH: Row(
            (DESCRIBE_GROUP, DESCRIBE_TOPIC),
            group_guards.offset_fetch,
            "of all topics, those that may not be described are left out",
            from_brokers=True,
        ),
        apis.FIND_COORDINATOR: Row(
            (DESCRIBE_GROUP + DESCRIBE_ID,), group_guards.find_coordinator, "of what is looked for"
        ),
        apis.JOIN_GROUP: Row((READ_GROUP,), group_guards.join_group),
        apis.HEARTBEAT: Row((READ_GROUP,), group_guards.heartbeat),
        apis.LEAVE_GROUP: Row((READ_GROUP,), group_guards.leave_group),
        apis.SYNC_GROUP: Row((READ_GROUP,), group_guards.sync_group),
        apis.DESCRIBE_GROUPS: Row((DESCRIBE_GROUP,), group_guards.describe_groups),
        apis.LIST_GROUPS: Row(
            (DESCRIBE_GROUP + DESCRIBE_CLUSTER,),
            group_guards.list_groups,
            "groups that may not be described are left out",
            from_brokers=True,
        ),
        apis.SASL_HANDSHAKE: Row((), unguarded, "part of logging in"),
        apis.API_VERSIONS: Row((), unguarded),
        apis.CREATE_TOPICS: Row(
            (CREATE,),
            topic_guards.create_topics,
            "a view needs READ on its base beside it; DESCRIBE_CONFIGS on the topic for its settings to be told",
        ),
        apis.DELETE_TOPICS: Row((DELETE_TOPIC,), topic_guards.delete_topics),
        apis.DELETE_RECORDS: Row((DELETE_TOPIC,), topic_guards.delete_records),
        apis.INIT_PRODUCER_ID: Row(
            (WRITE_ID + _need(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER) + WRITE_TOPIC,),
            transaction_guards.init_producer_id,
            "WRITE on the transactional id if there is one; otherwise IDEMPOTENT_WRITE, or WRITE on any topic",
        ),
        apis.OFFSET_FOR_LEADER_EPOCH: Row((DESCRIBE_TOPIC,), topic_guards.offset_for_leader_epoch),
        apis.ADD_PARTITIONS_TO_TXN: Row(
            (WRITE_ID, WRITE_TOPIC),
            transaction_guards.add_partitions,
            "from version 4 on for each transaction that the request names, where Kafka requires CLUSTER_ACTION",
            from_brokers=True,
        ),
        apis.ADD_OFFSETS_TO_TXN: Row((WRITE_ID, READ_GROUP), transaction_guards.add_offsets),
        apis.END_TXN: Row((WRITE_ID,), transaction_guards.end),
        apis.WRITE_TXN_MARKERS: Row(
            (CLUSTER_ACTION,), unguarded, "which brokers alone have: no ACL gives it", from_brokers=True
        ),
        apis.TXN_OFFSET_COMMIT: Row((WRITE_ID, READ_GROUP, READ_TOPIC), transaction_guards.commit_offsets),
        apis.DESCRIBE_ACLS: Row(
            (DESCRIBE_CLUSTER,), on_cluster(Operation.DESCRIBE, _with_message(DescribeAclsResponse))
        ),
        apis.CREATE_ACLS: Row((ALTER_CLUSTER,), on_cluster(Operation.ALTER, _refused_creations)),
        apis.DELETE_ACLS: Row((ALTER_CLUSTER,), on_cluster(Operation.ALTER, _refused_filters)),
        apis.DESCRIBE_CONFIGS: Row(
            (DESCRIBE_SETTINGS,),
            settings_guards.describe_configs,
            f"{_SETTINGS_NOTE}; secrets are never told",
        ),
        apis.ALTER_CONFIGS: Row((ALTER_SETTINGS,), settings_guards.alter_configs, _ALTER_NOTE),
        apis.DESCRIBE_LOG_DIRS: Row(
            (DESCRIBE_CLUSTER,),
            on_cluster(
                Operation.DESCRIBE, lambda request, context, code: DescribeLogDirsResponse(error_code=code, results=())
            ),
        ),
        apis.SASL_AUTHENTICATE: Row((), unguarded, "part of logging in"),
        apis.CREATE_PARTITIONS: Row((ALTER_TOPIC,), topic_guards.create_partitions),
        apis.DELETE_GROUPS: Row((DELETE_GROUP,), group_guards.delete_groups),
        apis.ELECT_LEADERS: Row(
            (ALTER_CLUSTER,),
            on_cluster(Operation.ALTER, lambda request, context, code: ElectLeadersResponse(error_code=code)),
        ),
        apis.INCREMENTAL_ALTER_CONFIGS: Row((ALTER_SETTINGS,), settings_guards.incremental_alter_configs, _ALTER_NOTE),
        apis.ALTER_PARTITION_REASSIGNMENTS: Row(
            (ALTER_CLUSTER,), on_cluster(Operation.ALTER, _with_message(AlterPartitionReassignmentsResponse))
        ),
        apis.LIST_PARTITION_REASSIGNMENTS: Row(
            (DESCRIBE_CLUSTER,), on_cluster(Operation.DESCRIBE, _with_message(ListPartitionReassignmentsResponse))
        ),
        apis.OFFSET_DELETE: Row((DELETE_GROUP, READ_TOPIC), group_guards.offset_delete),
        apis.DESCRIBE_CLIENT_QUOTAS: Row(
            (_need(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
            on_cluster(Operation.DESCRIBE_CONFIGS, _with_message(DescribeClientQuotasResponse)),
        ),
        apis.ALTER_CLIENT_QUOTAS: Row(
            (_need(Operation.ALTER_CONFIGS, ResourceType.CLUSTER),),
            on_cluster(Operation.ALTER_CONFIGS, _refused_quotas),
        ),
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS: Row(
            (DESCRIBE_CLUSTER,), on_cluster(Operation.DESCRIBE, _with_message(DescribeUserScramCredentialsResponse))
        ),
        apis.ALTER_USER_SCRAM_CREDENTIALS: Row((ALTER_CLUSTER,), on_cluster(Operation.ALTER, _refused_users)),
        apis.UPDATE_FEATURES: Row((ALTER_CLUSTER,), on_cluster(Operation.ALTER, _with_message(UpdateFeaturesResponse))),
        apis.DESCRIBE_CLUSTER: Row(
            (), topic_guards.describe_cluster, "the allowed operations are listed with DESCRIBE on the cluster"
        ),
        apis.DESCRIBE_PRODUCERS: Row((READ_TOPIC,), topic_guards.describe_producers),
        apis.DESCRIBE_TRANSACTIONS: Row(
            (DESCRIBE_ID,),
            transaction_guards.describe_transactions,
            "topics that may not be described are left out",
        ),
        apis.LIST_TRANSACTIONS: Row(
            (DESCRIBE_ID,),
            transaction_guards.list_transactions,
            "transactions that may not be described are left out",
        ),
        apis.CONSUMER_GROUP_HEARTBEAT: Row(
            (READ_GROUP, DESCRIBE_TOPIC), group_guards.consumer_group_heartbeat, "the topics that are subscribed to"
        ),
        apis.CONSUMER_GROUP_DESCRIBE: Row(
            (DESCRIBE_GROUP, DESCRIBE_TOPIC),
            group_guards.consumer_group_describe,
            "the topics that its members read",
        ),
        apis.LIST_CONFIG_RESOURCES: Row(
            (_need(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
            on_cluster(
                Operation.DESCRIBE_CONFIGS, lambda request, context, code: ListConfigResourcesResponse(error_code=code)
            ),
        ),
        apis.DESCRIBE_TOPIC_PARTITIONS: Row(
            (DESCRIBE_TOPIC,),
            topic_guards.describe_topic_partitions,
            "of all topics, those that may not be described are left out",
        ),
    }


class Guards:
    """Puts the guards of the table before handlers."""

    def __init__(self, permissions: Permissions, *, creates_topics: bool) -> None:
        self._permissions = permissions
        self._rows = table(creates_topics=creates_topics)

    def check(self, keys: set[int]) -> None:
        """Refuses to go on without a row for each call."""
        missing = keys - {api.key for api in self._rows}
        if missing:
            raise RuntimeError(f"nothing says what these calls need: {sorted(missing)}")

    def before(self, api: Api, handler: Handler) -> Handler:
        row = self._rows[api]
        permissions, guard, name = self._permissions, row.guard, api.name

        async def guarded(request: Any, context: RequestContext) -> Any:
            if row.from_brokers and context.caller.is_inter_broker:
                return await handler(request, context)
            return await guard(request, context, Access(permissions, context.caller, name), handler)

        return guarded
