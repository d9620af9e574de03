"""DescribeClientQuotas (48)."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, message, struct


@struct
class DescribeClientQuotasComponent:
    """`match_type` 0: this name; 1: the default; 2: any."""

    entity_type: str
    match_type: i8
    match: str | None = None


@message(flexible_from=1)
class DescribeClientQuotasRequest:
    components: tuple[DescribeClientQuotasComponent, ...]
    strict: bool


@struct
class DescribeClientQuotasEntity:
    """The name is null for the default."""

    entity_type: str
    entity_name: str | None = None


@struct
class DescribeClientQuotasValue:
    key: str
    value: float


@struct
class DescribeClientQuotasEntry:
    entity: tuple[DescribeClientQuotasEntity, ...]
    values: tuple[DescribeClientQuotasValue, ...]


@message(flexible_from=1)
class DescribeClientQuotasResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    entries: tuple[DescribeClientQuotasEntry, ...] | None = None
