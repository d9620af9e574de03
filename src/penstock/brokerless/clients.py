"""The SDK's clients on a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.brokerless.backend import StoreBackend
from penstock.brokerless.store import QueueStore
from penstock.sdk import aio_client, client
from penstock.sdk.client_core import ClientCore
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.receive.subscription import Subscriptions
from penstock.sdk.send.request_reply import REPLY_TOPIC
from penstock.sdk.send.sending_options import Sending


def _core(
    new_store: Callable[[], QueueStore],
    client_id: str | None,
    sending: Sending | None,
    hooks: Sequence[Hooks],
    reply_topic: str,
) -> ClientCore:
    return ClientCore(
        lambda: StoreBackend(new_store(), client_id),
        sender=client_id,
        sending=sending,
        hooks=hooks,
        reply_topic=reply_topic,
    )


class StoreClient(client.Client):
    """A `penstock.Client` on a store."""

    def __init__(
        self,
        new_store: Callable[[], QueueStore],
        *,
        client_id: str | None = None,
        sending: Sending | None = None,
        hooks: Sequence[Hooks] = (),
        reply_topic: str = REPLY_TOPIC,
    ) -> None:
        """Create a client. `new_store` is called once; the client closes the store."""
        self._core = _core(new_store, client_id, sending, hooks, reply_topic)
        self._subscriptions = Subscriptions()


class AsyncStoreClient(aio_client.Client):
    """A `penstock.aio.Client` on a store."""

    def __init__(
        self,
        new_store: Callable[[], QueueStore],
        *,
        client_id: str | None = None,
        sending: Sending | None = None,
        hooks: Sequence[Hooks] = (),
        reply_topic: str = REPLY_TOPIC,
    ) -> None:
        """Create a client. `new_store` is called once; the client closes the store."""
        self._core = _core(new_store, client_id, sending, hooks, reply_topic)
        self._subscriptions = Subscriptions()
        self._loop = None
