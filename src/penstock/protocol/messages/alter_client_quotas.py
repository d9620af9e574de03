"""AlterClientQuotas (49)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, message, struct


@struct
class AlterClientQuotasEntity:
    """The name is null for the default."""

    entity_type: str
    entity_name: str | None = None


@struct
class AlterClientQuotasOperation:
    key: str
    value: float
    remove: bool = False


@struct
class AlterClientQuotasEntry:
    entity: tuple[AlterClientQuotasEntity, ...]
    ops: tuple[AlterClientQuotasOperation, ...]


@message(flexible_from=1)
class AlterClientQuotasRequest:
    entries: tuple[AlterClientQuotasEntry, ...]
    validate_only: bool = False


@struct
class AlterClientQuotasResult:
    error_code: i16 = 0
    error_message: str | None = None
    entity: tuple[AlterClientQuotasEntity, ...]


@message(flexible_from=1)
class AlterClientQuotasResponse:
    throttle_time_ms: i32 = 0
    entries: tuple[AlterClientQuotasResult, ...]
