"""Kafka's features (KIP-584): what of the protocol is on for the whole cluster. ApiVersions tells clients."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.protocol.messages.api_versions import FinalizedFeatureKey, SupportedFeatureKey

# By name: the lowest and the highest level that is known here. The highest is in force, everywhere and always.
LEVELS: Mapping[str, tuple[int, int]] = {
    "group.version": (0, 1),  # 1: the consumer groups of KIP-848
    "transaction.version": (0, 2),  # 2: the transactions of KIP-890
}
_LEVEL_ZERO_FROM = 4
"""Before this version of ApiVersions, clients fail at a lowest level of 0; Kafka tells them 1 as well."""

FINALIZED = tuple(
    FinalizedFeatureKey(name=name, max_version_level=high, min_version_level=high) for name, (_, high) in LEVELS.items()
)
FEATURES_EPOCH = 0
"""Levels never change while a cluster runs."""


def supported(version: int) -> tuple[SupportedFeatureKey, ...]:
    """The levels, as a version of ApiVersions can tell them."""
    lowest = 0 if version >= _LEVEL_ZERO_FROM else 1
    return tuple(
        SupportedFeatureKey(name=name, min_version=max(low, lowest), max_version=high)
        for name, (low, high) in LEVELS.items()
    )
