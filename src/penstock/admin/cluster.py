"""A cluster as an operator sees it: the entry to all admin operations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.admin.brokers import BrokerOperations
from penstock.admin.configs import ConfigOperations
from penstock.admin.connection import AdminConnection, ignore
from penstock.admin.group_reset import ResetOperations
from penstock.admin.groups import GroupOperations
from penstock.admin.offsets import OffsetOperations
from penstock.admin.retirement import RetirementOperations
from penstock.admin.topics import TopicOperations
from penstock.sdk.kafka.connection import ConnectionSettings

if TYPE_CHECKING:
    from penstock.admin.acls import AclOperations
    from penstock.admin.databases import DatabaseOperations
    from penstock.admin.dead_letters import DeadLetterOperations
    from penstock.admin.group_offsets import GroupOffsetOperations
    from penstock.admin.log_dirs import LogDirOperations
    from penstock.admin.quotas import QuotaOperations
    from penstock.admin.reassignments import ReassignmentOperations
    from penstock.admin.timers import TimerOperations
    from penstock.admin.transactions import TransactionOperations
    from penstock.admin.users import UserOperations

_QUIET = {"log_level": 0, "error_cb": ignore}


class Cluster:
    """Typed operations on a cluster, asked as any client asks. Any thread may use it; calls block.

    It connects when it is first used, and needs no closing.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float = 30.0,
        client_id: str = "penstock-admin",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`bootstrap` is HOST:PORT, or several with commas; `settings` are librdkafka's (TLS, SASL, ...).

        A call returns or raises within `timeout_s`; those that read many records do so `timeout_s` after the last
        record came.
        """
        self.bootstrap = bootstrap
        connection = AdminConnection(
            ConnectionSettings(bootstrap, client_id, {**_QUIET, **(settings or {})}), timeout_s
        )
        self._connection = connection
        self.configs = ConfigOperations(connection)
        self.offsets = OffsetOperations(connection)
        self.brokers = BrokerOperations(connection, self.configs)
        self.topics = TopicOperations(connection, self.configs, self.offsets)
        self.groups = GroupOperations(connection, self.configs, self.offsets)
        self.resets = ResetOperations(self.groups, self.offsets)
        self.retirement = RetirementOperations(self.topics, self.configs, self.groups)

    # These bring much of the SDK, or the protocol's messages, with them: imported when they are first used.

    @cached_property
    def timers(self) -> TimerOperations:
        from penstock.admin.timers import TimerOperations

        return TimerOperations(self._connection, self.topics)

    @cached_property
    def acls(self) -> AclOperations:
        from penstock.admin.acls import AclOperations

        return AclOperations(self._connection, self.configs)

    @cached_property
    def dead_letters(self) -> DeadLetterOperations:
        from penstock.admin.dead_letters import DeadLetterOperations

        return DeadLetterOperations(self._connection, self.topics, self.offsets)

    @cached_property
    def databases(self) -> DatabaseOperations:
        from penstock.admin.databases import DatabaseOperations

        return DatabaseOperations(self._connection)

    @cached_property
    def users(self) -> UserOperations:
        from penstock.admin.users import UserOperations

        return UserOperations(self._connection)

    @cached_property
    def reassignments(self) -> ReassignmentOperations:
        from penstock.admin.reassignments import ReassignmentOperations

        return ReassignmentOperations(self._connection)

    @cached_property
    def quotas(self) -> QuotaOperations:
        from penstock.admin.quotas import QuotaOperations

        return QuotaOperations(self._connection)

    @cached_property
    def log_dirs(self) -> LogDirOperations:
        from penstock.admin.log_dirs import LogDirOperations

        return LogDirOperations(self._connection)

    @cached_property
    def group_offsets(self) -> GroupOffsetOperations:
        from penstock.admin.group_offsets import GroupOffsetOperations

        return GroupOffsetOperations(self._connection)

    @cached_property
    def transactions(self) -> TransactionOperations:
        from penstock.admin.transactions import TransactionOperations

        return TransactionOperations(self._connection)

    def check(self) -> None:
        """Raises `UnreachableError` if no broker answers; at once if connections are refused."""
        self._connection.require_listener()
        self._connection.metadata(self._connection.deadline())

    def require_listener(self) -> None:
        """Raises `UnreachableError` if nothing accepts connections; asks no broker anything."""
        self._connection.require_listener()

    def id(self) -> str:
        """The cluster's id."""
        deadline = self._connection.deadline()
        asked = self._connection.client.describe_cluster(request_timeout=deadline.left_s)
        return str(self._connection.result(asked, deadline).cluster_id)
