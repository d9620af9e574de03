"""The SDK for asyncio applications: `penstock.aio.Client` and `penstock.aio.open`."""

from penstock.brokerless.opening import open_async as open
from penstock.sdk.aio_client import Client

__all__ = ["Client", "open"]
