"""Penstock: a message queue that Kafka clients take for Kafka.

What applications use is here under its own name (`penstock.Client`), and is imported when it is first asked for: a
broker starts without confluent-kafka.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.sdk.client import Client as Client
    from penstock.sdk.counters import Counters as Counters
    from penstock.sdk.errors import BufferFullError as BufferFullError
    from penstock.sdk.errors import ClientError as ClientError
    from penstock.sdk.errors import ClosedError as ClosedError
    from penstock.sdk.errors import FencedError as FencedError
    from penstock.sdk.errors import InvalidInputError as InvalidInputError
    from penstock.sdk.errors import NoReplyError as NoReplyError
    from penstock.sdk.errors import SendError as SendError
    from penstock.sdk.errors import SettledError as SettledError
    from penstock.sdk.errors import SpillError as SpillError
    from penstock.sdk.errors import TopicError as TopicError
    from penstock.sdk.errors import TransactionError as TransactionError
    from penstock.sdk.hooks import Hooks as Hooks
    from penstock.sdk.message import Message as Message
    from penstock.sdk.opentelemetry_hooks import OpenTelemetryHooks as OpenTelemetryHooks
    from penstock.sdk.ports import Outgoing as Outgoing
    from penstock.sdk.ports import Receipt as Receipt
    from penstock.sdk.prometheus_hooks import PrometheusHooks as PrometheusHooks
    from penstock.sdk.receive.dedup import Dedup as Dedup
    from penstock.sdk.receive.dedup import MemoryStore as MemoryStore
    from penstock.sdk.receive.dedup_redis import RedisStore as RedisStore
    from penstock.sdk.receive.dedup_sql import SqlStore as SqlStore
    from penstock.sdk.receive.retries import Retries as Retries
    from penstock.sdk.send.sending import Drop as Drop
    from penstock.sdk.send.sending import Keep as Keep
    from penstock.sdk.send.sending import Sending as Sending
    from penstock.sdk.send.sending import Spill as Spill
    from penstock.sdk.send.transactions import Transaction as Transaction
    from penstock.sdk.waiting import WaitingMessage as WaitingMessage

__version__ = "0.1.0"

_HOMES = {
    "client": ("Client",),
    "counters": ("Counters",),
    "receive.dedup": ("Dedup", "MemoryStore"),
    "receive.dedup_redis": ("RedisStore",),
    "receive.dedup_sql": ("SqlStore",),
    "errors": (
        "BufferFullError",
        "ClientError",
        "ClosedError",
        "FencedError",
        "InvalidInputError",
        "NoReplyError",
        "SendError",
        "SettledError",
        "SpillError",
        "TopicError",
        "TransactionError",
    ),
    "hooks": ("Hooks",),
    "message": ("Message",),
    "opentelemetry_hooks": ("OpenTelemetryHooks",),
    "ports": ("Outgoing", "Receipt"),
    "prometheus_hooks": ("PrometheusHooks",),
    "receive.retries": ("Retries",),
    "send.sending": ("Drop", "Keep", "Sending", "Spill"),
    "send.transactions": ("Transaction",),
    "waiting": ("WaitingMessage",),
}
_HOME_OF = {name: f"penstock.sdk.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
