"""Operations on the audit log: read and export. Nothing changes it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.admin import Page
from penstock.console.operations.operation import Scope, Service, query
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditEntry, AuditFilter


class AuditOperations(Service):
    """Reads the log."""

    @query("audit.list", Role.ADMIN, Scope.CONSOLE)
    async def list(
        self, caller: Caller, wanted: AuditFilter, limit: int = 100, after: str | None = None
    ) -> Page[AuditEntry]:
        """Entries, the newest first."""
        return await self.audit_log.page(wanted, limit, after)

    @query("audit.export", Role.ADMIN, Scope.CONSOLE, is_audited=True)
    async def export(self, caller: Caller, wanted: AuditFilter) -> AsyncIterator[AuditEntry]:
        """All that match, one after the other."""
        return self.audit_log.all(wanted)
