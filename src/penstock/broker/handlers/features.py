"""UpdateFeatures: the levels of a cluster's features are fixed, so an update is checked and changes nothing."""

from __future__ import annotations

from penstock.broker.features import LEVELS
from penstock.broker.requests.context import RequestContext
from penstock.errors import ApiError, Code
from penstock.protocol.messages.update_features import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_TYPES_FROM = 1
_ONE_ERROR_FROM = 2
"""From this version on there are no results of single features."""


class FeatureHandlers:
    async def update_features(self, request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
        """Asking for the level that is in force succeeds; anything else is refused, validate-only or not."""
        errors = {update.feature: _refusal(update, context.version) for update in request.feature_updates}
        if context.version < _ONE_ERROR_FROM:
            return UpdateFeaturesResponse(
                results=tuple(
                    UpdatableFeatureResult(
                        feature=feature,
                        error_code=Code.NONE if error is None else error.code,
                        error_message=None if error is None else str(error),
                    )
                    for feature, error in errors.items()
                )
            )
        first = next((error for error in errors.values() if error is not None), None)
        if first is None:
            return UpdateFeaturesResponse()
        return UpdateFeaturesResponse(error_code=first.code, error_message=f"No feature was updated: {first}")


def _refusal(update: FeatureUpdateKey, version: int) -> ApiError | None:
    name, level = update.feature, update.max_version_level
    upgrade_type = update.upgrade_type
    if version < _TYPES_FROM:
        upgrade_type = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return _invalid(update, f"there is no upgrade type {upgrade_type}")
    if name not in LEVELS:
        return _invalid(update, f"the cluster has the features {', '.join(LEVELS)}, and no other")
    lowest, in_force = LEVELS[name]
    if not lowest <= level <= in_force:
        return _invalid(update, f"brokers support the levels {lowest} to {in_force}")
    if level == in_force:
        return None
    if upgrade_type == UPGRADE:
        return _invalid(update, f"level {in_force} is in force; a lower level needs the upgrade type of a downgrade")
    return ApiError(
        Code.FEATURE_UPDATE_FAILED,
        f"{name} stays at level {in_force}: the levels of features are fixed and cannot be changed",
    )


def _invalid(update: FeatureUpdateKey, reason: str) -> ApiError:
    return ApiError(
        Code.INVALID_UPDATE_VERSION, f"{update.feature} cannot be set to level {update.max_version_level}: {reason}"
    )
