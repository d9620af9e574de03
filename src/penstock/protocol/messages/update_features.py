"""UpdateFeatures (57): changes the levels of what is switched on for a whole cluster (KIP-584, KIP-778)."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, message, since, struct, until

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3


@struct
class FeatureUpdateKey:
    feature: str
    max_version_level: i16
    allow_downgrade: bool = until(0, default=False)
    upgrade_type: i8 = since(1, default=UPGRADE)


@message(flexible_from=0)
class UpdateFeaturesRequest:
    timeout_ms: i32 = 60_000
    feature_updates: tuple[FeatureUpdateKey, ...]
    validate_only: bool = since(1, default=False)


@struct
class UpdatableFeatureResult:
    feature: str
    error_code: i16 = 0
    error_message: str | None = None


@message(flexible_from=0)
class UpdateFeaturesResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    results: tuple[UpdatableFeatureResult, ...] = until(1, default=())
