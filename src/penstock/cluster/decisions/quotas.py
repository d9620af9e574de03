"""Decisions about quotas: the new limits of an entity, or why a change is refused."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import ApiError, Code
from penstock.security.quota_entity import QuotaEntity
from penstock.security.quota_keys import QUOTA_KEYS, QuotaLimits, checked_limit

QuotaChange = Mapping[str, float | None]
"""New limits by key; None takes one away."""


def alter_quota(draft: MetadataDraft, entity: QuotaEntity, change: QuotaChange, max_entities: int) -> QuotaLimits:
    """The new limits of an entity; `max_entities` is how many may have some."""
    before = draft.quotas.get(entity, {})
    limits = dict(before)
    try:
        for name, value in change.items():
            if value is not None:
                key, limit = checked_limit(entity, name, value)
                limits[key] = limit
            else:
                checked_limit(entity, name, 1)
                limits.pop(QUOTA_KEYS[name], None)
    except ValueError as error:
        raise ApiError(Code.INVALID_REQUEST, str(error)) from None
    if limits and not before and len(draft.quotas) >= max_entities:
        raise ApiError(
            Code.POLICY_VIOLATION, f"{max_entities} entities have quotas already; quotas.entities allows no more."
        )
    return limits
