"""The SDK's clients on a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from penstock.brokerless.backend import StoreBackend
from penstock.brokerless.store import QueueStore
from penstock.sdk import aio_client, client
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.payloads.codecs import Codec
from penstock.sdk.send.sending_options import Sending


class OpenOptions(TypedDict, total=False):
    """The options of `penstock.open`. `penstock.Client` says what they mean."""

    client_id: str | None
    """The name of the application."""
    sending: Sending | None
    """Delivery guarantee, batching, and what to do while the queue is unreachable."""
    hooks: Sequence[Hooks]
    """Objects that observe messages."""
    reply_topic: str
    """The topic for replies to requests of this client."""
    codecs: Sequence[Codec]
    """Codecs of typed payloads; the first one is the default."""


class StoreClient(client.Client):
    """A `penstock.Client` on a store."""

    def __init__(self, new_store: Callable[[], QueueStore], *, address: str, **options: Unpack[OpenOptions]) -> None:
        """Create a client. `new_store` is called once; the client closes the store. `address` is shown to people."""
        self._assemble(lambda: StoreBackend(new_store(), options.get("client_id")), address=address, **options)


class AsyncStoreClient(aio_client.Client):
    """A `penstock.aio.Client` on a store."""

    def __init__(self, new_store: Callable[[], QueueStore], *, address: str, **options: Unpack[OpenOptions]) -> None:
        """Create a client. `new_store` is called once; the client closes the store. `address` is shown to people."""
        self._assemble(lambda: StoreBackend(new_store(), options.get("client_id")), address=address, **options)
