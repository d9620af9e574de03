"""The SDK's clients on a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.brokerless.backend import StoreBackend
from penstock.brokerless.store import QueueStore
from penstock.sdk import aio_client, client
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.payloads.codecs import Codec
from penstock.sdk.send.request_reply import REPLY_TOPIC
from penstock.sdk.send.sending_options import Sending


class StoreClient(client.Client):
    """A `penstock.Client` on a store."""

    def __init__(
        self,
        new_store: Callable[[], QueueStore],
        *,
        address: str,
        client_id: str | None = None,
        sending: Sending | None = None,
        hooks: Sequence[Hooks] = (),
        reply_topic: str = REPLY_TOPIC,
        codecs: Sequence[Codec] = (),
    ) -> None:
        """Create a client. `new_store` is called once; the client closes the store. `address` is shown to people."""
        self._assemble(
            lambda: StoreBackend(new_store(), client_id),
            address=address,
            client_id=client_id,
            sending=sending,
            hooks=hooks,
            reply_topic=reply_topic,
            codecs=codecs,
        )


class AsyncStoreClient(aio_client.Client):
    """A `penstock.aio.Client` on a store."""

    def __init__(
        self,
        new_store: Callable[[], QueueStore],
        *,
        address: str,
        client_id: str | None = None,
        sending: Sending | None = None,
        hooks: Sequence[Hooks] = (),
        reply_topic: str = REPLY_TOPIC,
        codecs: Sequence[Codec] = (),
    ) -> None:
        """Create a client. `new_store` is called once; the client closes the store. `address` is shown to people."""
        self._assemble(
            lambda: StoreBackend(new_store(), client_id),
            address=address,
            client_id=client_id,
            sending=sending,
            hooks=hooks,
            reply_topic=reply_topic,
            codecs=codecs,
        )
