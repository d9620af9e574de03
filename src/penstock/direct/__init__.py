"""The SDK's client on a database, without a broker: `penstock.direct.Client`, and the outbox of an application."""

from penstock.brokerless.sql.handler_transaction import HandlerTransaction
from penstock.direct.client import Client
from penstock.direct.outbox import Outbox, outbox

__all__ = ["Client", "HandlerTransaction", "Outbox", "outbox"]
