"""Penstock: a message broker that speaks the Kafka protocol, and its SDK.

The public names of the SDK are here (`penstock.Client`). They are imported on first use, so that a broker starts
without confluent-kafka.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.brokerless.opening import open as open
    from penstock.sdk.client import Client as Client
    from penstock.sdk.counters import Counters as Counters
    from penstock.sdk.dedup.redis_store import RedisStore as RedisStore
    from penstock.sdk.dedup.sql_store import SqlStore as SqlStore
    from penstock.sdk.dedup.store import Dedup as Dedup
    from penstock.sdk.dedup.store import MemoryStore as MemoryStore
    from penstock.sdk.errors import BufferFullError as BufferFullError
    from penstock.sdk.errors import ClientError as ClientError
    from penstock.sdk.errors import ClosedError as ClosedError
    from penstock.sdk.errors import DecodeError as DecodeError
    from penstock.sdk.errors import FencedError as FencedError
    from penstock.sdk.errors import InvalidInputError as InvalidInputError
    from penstock.sdk.errors import NoReplyError as NoReplyError
    from penstock.sdk.errors import SendError as SendError
    from penstock.sdk.errors import SendManyError as SendManyError
    from penstock.sdk.errors import SettledError as SettledError
    from penstock.sdk.errors import SpillError as SpillError
    from penstock.sdk.errors import TopicError as TopicError
    from penstock.sdk.errors import TransactionError as TransactionError
    from penstock.sdk.hooks.base import Hooks as Hooks
    from penstock.sdk.hooks.delay_bridge import DelayBridge as DelayBridge
    from penstock.sdk.hooks.opentelemetry import OpenTelemetryHooks as OpenTelemetryHooks
    from penstock.sdk.hooks.prometheus import PrometheusHooks as PrometheusHooks
    from penstock.sdk.message import Message as Message
    from penstock.sdk.payloads.codecs import Codec as Codec
    from penstock.sdk.ports import Outgoing as Outgoing
    from penstock.sdk.ports import Receipt as Receipt
    from penstock.sdk.receive.retries import Retries as Retries
    from penstock.sdk.receive.subscription import SubscriptionStatus as SubscriptionStatus
    from penstock.sdk.send.outgoing_message import SendEntry as SendEntry
    from penstock.sdk.send.send_outcome import Receipts as Receipts
    from penstock.sdk.send.sending_options import Drop as Drop
    from penstock.sdk.send.sending_options import Keep as Keep
    from penstock.sdk.send.sending_options import Sending as Sending
    from penstock.sdk.send.sending_options import Spill as Spill
    from penstock.sdk.send.transactions import Transaction as Transaction
    from penstock.sdk.timers import WaitingMessage as WaitingMessage

__version__ = "0.2.0"

_HOMES = {
    "client": ("Client",),
    "counters": ("Counters",),
    "dedup.store": ("Dedup", "MemoryStore"),
    "dedup.redis_store": ("RedisStore",),
    "dedup.sql_store": ("SqlStore",),
    "errors": (
        "BufferFullError",
        "ClientError",
        "ClosedError",
        "DecodeError",
        "FencedError",
        "InvalidInputError",
        "NoReplyError",
        "SendError",
        "SendManyError",
        "SettledError",
        "SpillError",
        "TopicError",
        "TransactionError",
    ),
    "hooks.base": ("Hooks",),
    "hooks.delay_bridge": ("DelayBridge",),
    "message": ("Message",),
    "hooks.opentelemetry": ("OpenTelemetryHooks",),
    "payloads.codecs": ("Codec",),
    "ports": ("Outgoing", "Receipt"),
    "hooks.prometheus": ("PrometheusHooks",),
    "receive.retries": ("Retries",),
    "receive.subscription": ("SubscriptionStatus",),
    "send.outgoing_message": ("SendEntry",),
    "send.send_outcome": ("Receipts",),
    "send.sending_options": ("Drop", "Keep", "Sending", "Spill"),
    "send.transactions": ("Transaction",),
    "timers": ("WaitingMessage",),
}
_HOME_OF = {name: f"penstock.sdk.{module}" for module, names in _HOMES.items() for name in names}
_HOME_OF["open"] = "penstock.brokerless.opening"


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute '{name}'")
    try:
        found = globals()[name] = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        from penstock.extras import missing_extra

        raise missing_extra(error, f"penstock.{name}") or error from None
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
