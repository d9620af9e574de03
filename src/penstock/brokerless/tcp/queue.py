"""A queue that this process serves."""

from __future__ import annotations

from penstock.brokerless.memory.store import MemoryStore
from penstock.brokerless.memory.topics import MAX_BYTES, MAX_MESSAGES
from penstock.brokerless.tcp.server import StoreServer
from penstock.brokerless.topic_entries import DEFAULT_PARTITIONS


class ServedQueue(MemoryStore):
    """A store in memory that clients of other processes use too."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        partitions: int = DEFAULT_PARTITIONS,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Serve at once; port 0 is any free port. Raises `InvalidInputError` if the address cannot be used."""
        super().__init__(
            partitions=partitions, max_messages=max_messages, max_bytes=max_bytes, address=f"tcp://{host}:{port}"
        )
        try:
            self._server = StoreServer(self, host, port)
        except BaseException:
            super().close()
            raise
        self.port = self._server.port

    def close(self) -> None:
        self._server.close()
        super().close()
