"""`penstock.direct.aio.Client`: the client for asyncio applications."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from penstock.brokerless.address import QueueAddress
from penstock.brokerless.clients import AsyncStoreClient
from penstock.brokerless.sql.store import CONNECTIONS, TIMEOUT_MS, SqlStore
from penstock.durations import Duration, duration_ms
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.payloads.codecs import Codec
from penstock.sdk.send.request_reply import REPLY_TOPIC
from penstock.sdk.send.sending_options import Sending


class Client(AsyncStoreClient):
    """Sends and receives messages through a database, for asyncio. `penstock.direct.Client` says what it does."""

    def __init__(
        self,
        address: str,
        *,
        client_id: str | None = None,
        sending: Sending | None = None,
        hooks: Sequence[Hooks] = (),
        reply_topic: str = REPLY_TOPIC,
        codecs: Sequence[Codec] = (),
        connections: int = CONNECTIONS,
        timeout: Duration = f"{TIMEOUT_MS}ms",
        key_file: str | Path | None = None,
        offsets: str | None = None,
    ) -> None:
        """Create a client. Arguments and errors are those of `penstock.direct.Client`."""
        super().__init__(
            partial(
                SqlStore,
                address,
                connections=connections,
                timeout_ms=duration_ms(timeout),
                key_file=key_file,
                offsets=offsets,
            ),
            address=QueueAddress.parse(address).shown,
            client_id=client_id,
            sending=sending,
            hooks=hooks,
            reply_topic=reply_topic,
            codecs=codecs,
        )
