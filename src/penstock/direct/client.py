"""`penstock.direct.Client`: the client for applications that use threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from penstock.brokerless.clients import StoreClient
from penstock.brokerless.sql.store import CONNECTIONS, TIMEOUT_MS, SqlStore
from penstock.durations import Duration, duration_ms
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.send.request_reply import REPLY_TOPIC
from penstock.sdk.send.sending_options import Sending


class Client(StoreClient):
    """Sends and receives messages through a database. Safe for use by any number of threads.

    It has everything that `penstock.Client` has, and uses the tables that a broker with `--sql` uses: a topic can be
    used with and without brokers, also at the same time.

    Example:
        ```python
        with penstock.direct.Client("mysql://shop:secret@localhost/shop") as client:
            client.send("orders", b"order 7", key="ann", delay="30m")
        ```
    """

    def __init__(
        self,
        address: str,
        *,
        client_id: str | None = None,
        sending: Sending | None = None,
        hooks: Sequence[Hooks] = (),
        reply_topic: str = REPLY_TOPIC,
        connections: int = CONNECTIONS,
        timeout: Duration = f"{TIMEOUT_MS}ms",
        key_file: str | Path | None = None,
    ) -> None:
        """Create a client. It connects when it is first used, and makes the tables that are missing.

        Args:
            address: `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, `postgresql://…` or `sqlite:///FILE`.
            client_id: The name of the application. Every message carries it in the header `penstock-sender`.
            sending: Delivery guarantee, batching, and what to do while the database is unreachable.
            hooks: Objects that observe messages, such as `PrometheusHooks()`.
            reply_topic: The topic for replies to requests of this client. The first request creates it.
            connections: How many connections the client opens at most, to each database server.
            timeout: How long the database may take for one transaction.
            key_file: The file with the key to the passwords of database groups, if there are any (`penstock dbnode
                key`). Without it the client uses only the database of its address.

        Raises:
            InvalidInputError: An argument is invalid.
            SpillError: The folder of `Spill` cannot be used.
        """
        super().__init__(
            partial(
                SqlStore, address, connections=connections, timeout_ms=duration_ms(timeout), key_file=key_file
            ),
            client_id=client_id,
            sending=sending,
            hooks=hooks,
            reply_topic=reply_topic,
        )
