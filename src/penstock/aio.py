"""Penstock for applications on an event loop: `penstock.aio.Client`."""

from penstock.sdk.aio_client import Client

__all__ = ["Client"]
