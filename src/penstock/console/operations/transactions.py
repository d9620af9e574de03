"""Operations on transactions: which are open or hang, and aborting one."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.admin import OpenTransaction, TransactionDescription
from penstock.console.errors import ConflictError
from penstock.console.operations.clusters import Clusters
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditLog


@dataclass(frozen=True, slots=True)
class TransactionList:
    """Transactional ids, and which brokers did not tell of theirs."""

    transactions: tuple[OpenTransaction, ...]
    problems: tuple[str, ...]


class TransactionOperations(Service):
    """Transactions of a cluster."""

    def __init__(self, audit: AuditLog, clusters: Clusters) -> None:
        super().__init__(audit)
        self._clusters = clusters

    @query("transactions.list", Role.VIEWER, Scope.CLUSTER)
    async def list(
        self, caller: Caller, cluster: str, open_only: bool = False, older_than_ms: int | None = None
    ) -> TransactionList:
        """All transactional ids, those with an open transaction, or those open for this long."""
        link = self._clusters[cluster].link
        key = ("transactions", open_only, older_than_ms)
        found = await link.detail(
            key, lambda admin: admin.transactions.list(open_only=open_only, older_than_ms=older_than_ms)
        )
        return TransactionList(found.transactions, tuple(error.message for error in found.errors))

    @query("transactions.describe", Role.VIEWER, Scope.CLUSTER)
    async def describe(self, caller: Caller, cluster: str, transaction: str) -> TransactionDescription:
        link = self._clusters[cluster].link
        found = await link.run(lambda admin: admin.transactions.describe([transaction]))
        return found[transaction]

    @change("transactions.abort", Role.OPERATOR, Scope.CLUSTER)
    async def abort(
        self, caller: Caller, cluster: str, transaction: str, confirm: str
    ) -> Changed[TransactionDescription]:
        """Aborts what is open under an id; its producer is fenced. `confirm` is the id once more."""
        if confirm != transaction:
            raise ConflictError(f"type the id {transaction} to confirm; nothing was aborted")
        managed = self._clusters[cluster]
        before = await self.describe(caller, cluster, transaction)
        if not before.is_open:
            raise ConflictError(f"no transaction is open under {transaction} ({before.state}); nothing was aborted")
        await managed.link.run(lambda admin: admin.transactions.abort(transaction))
        managed.changed()
        after = await self.describe(caller, cluster, transaction)
        return Changed(after, before, after)
