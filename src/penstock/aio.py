"""The SDK for asyncio applications: `penstock.aio.Client`."""

from penstock.sdk.aio_client import Client

__all__ = ["Client"]
