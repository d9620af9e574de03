"""How brokers are reached: the settings that all of a client's connections have in common."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.logs import fields
from penstock.sdk.errors import InvalidInputError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

log = logging.getLogger(__name__)

_SERVER = re.compile(r"(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.%]+\]|[^\s:,\[\]]+):\d{1,5}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Access:
    """Where the brokers are, who asks, and what else librdkafka is told (TLS, passwords)."""

    bootstrap: str
    client_id: str = field(default_factory=lambda: f"penstock-{uuid.uuid4().hex[:12]}")
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.bootstrap, str):
            raise InvalidInputError(f"bootstrap is {self.bootstrap!r}: HOST:PORT is allowed, or several with commas")
        for server in self.bootstrap.split(","):
            if _SERVER.fullmatch(server.strip()) is None:
                raise InvalidInputError(f"bootstrap names {server.strip()!r}: HOST:PORT is allowed")
        if not self.client_id:
            raise InvalidInputError("client_id is empty")

    def settings_for(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The settings of one connection; what the application has given comes last, so that it decides."""
        ours = {"bootstrap.servers": self.bootstrap, "client.id": self.client_id, "log_level": 0, "error_cb": _note}
        return {**ours, **(more or {}), **self.settings}


def _note(error: KafkaError) -> None:
    """Connection trouble is retried by the library; what matters fails the call that needed it.

    The library would log every attempt: people are told once that no broker is left, and of what will not go away.
    """
    is_news = error.fatal() or error.code() in (error._ALL_BROKERS_DOWN, error._AUTHENTICATION, error._SSL)
    log.log(logging.WARNING if is_news else logging.DEBUG, "trouble with the brokers", extra=fields(reason=error.str()))
