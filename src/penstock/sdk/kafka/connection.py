"""How to reach the brokers: the settings that all connections of a client share."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.sdk.errors import InvalidInputError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from penstock.sdk.kafka.broker_availability import BrokerAvailability

CREATES_NOTHING: Mapping[str, Any] = {"allow.auto.create.topics": False}
"""For a client that looks up topics by name: where brokers create topics on demand, looking would create them."""

_SERVER = re.compile(r"(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.%]+\]|[^\s:,\[\]]+):\d{1,5}", re.ASCII)
_HIGHEST_PORT = 65_535
_RECONNECT_MS = 1000
"""How soon a broker that is back is noticed; librdkafka's default is up to 10 seconds."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The addresses of brokers, the client id, and further librdkafka settings (TLS, passwords)."""

    bootstrap: str
    client_id: str = field(default_factory=lambda: f"penstock-{uuid.uuid4().hex[:12]}")
    settings: Mapping[str, Any] = field(default_factory=dict)
    availability: BrokerAvailability = field(init=False, compare=False, repr=False)
    """Knows when no broker is reachable."""

    def __post_init__(self) -> None:
        from penstock.sdk.kafka.broker_availability import BrokerAvailability

        if not isinstance(self.bootstrap, str):
            raise InvalidInputError(
                f"bootstrap must be HOST:PORT, or several separated by commas, not {self.bootstrap!r}"
            )
        for server in self.bootstrap.split(","):
            if _SERVER.fullmatch(server.strip()) is None or int(server.rpartition(":")[2]) > _HIGHEST_PORT:
                raise InvalidInputError(f"bootstrap: {server.strip()!r} is not HOST:PORT, such as localhost:9092")
        if not isinstance(self.client_id, str) or not self.client_id:
            raise InvalidInputError(f"client_id must be a non-empty text, not {self.client_id!r}")
        if not isinstance(self.settings, Mapping):
            raise InvalidInputError(
                f"settings must be a mapping such as {{'security.protocol': 'ssl'}}, not {self.settings!r}"
            )
        object.__setattr__(self, "settings", {str(name): value for name, value in self.settings.items()})
        object.__setattr__(self, "availability", BrokerAvailability(self.bootstrap))

    def settings_for(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The settings of one connection; those of the application take precedence."""
        ours = {
            "bootstrap.servers": self.bootstrap,
            "client.id": self.client_id,
            "log_level": 0,
            "error_cb": self._heard,
            "reconnect.backoff.max.ms": _RECONNECT_MS,
        }
        return {**ours, **(more or {}), **self.settings}

    def _heard(self, error: KafkaError) -> None:
        """librdkafka retries connections itself; a call that needs a broker fails on its own."""
        self.availability.heard(error, {**self.settings_for(), "error_cb": None})
