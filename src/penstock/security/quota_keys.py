"""What can be limited, and which limits are allowed; Kafka's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum

from penstock.security.quota_entity import QuotaEntity

_LONG_MAX, _INT_MAX = 2**63 - 1, 2**31 - 1


class QuotaKey(Enum):
    """One thing that a quota limits, on each broker by itself."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


CLIENT_KEYS = (
    QuotaKey.PRODUCER_BYTE_RATE,
    QuotaKey.CONSUMER_BYTE_RATE,
    QuotaKey.REQUEST_PERCENTAGE,
    QuotaKey.CONTROLLER_MUTATION_RATE,
)
"""What users and client ids can have."""
IP_KEYS = (QuotaKey.CONNECTION_CREATION_RATE,)
QUOTA_KEYS = {key.value: key for key in QuotaKey}
_WHOLE = {
    QuotaKey.PRODUCER_BYTE_RATE: _LONG_MAX,
    QuotaKey.CONSUMER_BYTE_RATE: _LONG_MAX,
    QuotaKey.CONNECTION_CREATION_RATE: _INT_MAX,
}
"""Those that are whole numbers, and the largest of them."""

QuotaLimits = Mapping[QuotaKey, float]
"""What one entity is limited to, per second."""


def checked_limit(entity: QuotaEntity, key: str, value: float) -> tuple[QuotaKey, float]:
    """The key and its value; ValueError if the entity cannot have it."""
    allowed = IP_KEYS if entity.ip is not None else CLIENT_KEYS
    found = next((each for each in allowed if each.value == key), None)
    if found is None:
        names = ", ".join(each.value for each in allowed)
        raise ValueError(f"Invalid configuration key {key}: {entity} can have {names}.")
    if not value > 0:
        raise ValueError(f"Quota {key} must be greater than 0.")
    if math.isinf(value):
        raise ValueError(f"Quota {key} must be finite.")
    largest = _WHOLE.get(found)
    if largest is None:
        return found, value
    # Clients send floating-point numbers, which may be a little beside the whole number that they mean.
    whole = round(value)
    if abs(value - whole) > 1e-6:
        raise ValueError(f"Quota {key} must be a whole number.")
    if not 0 < whole <= largest:
        raise ValueError(f"Quota {key} must be at least 1 and at most {largest}.")
    return found, float(whole)
