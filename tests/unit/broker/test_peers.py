"""Requests to other brokers: who waits for whom."""

from __future__ import annotations

import asyncio
import ssl
import struct

from penstock.broker.peers import Peers
from penstock.cluster.metadata import BrokerInfo, MetadataImage
from penstock.ids import BrokerId
from penstock.net.peer import PeerLogin, PeerSecurity
from penstock.protocol import encoding
from penstock.protocol.apis import ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS
from penstock.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

ME, OTHER = BrokerId(1), BrokerId(2)
PATIENCE_S = 5.0
"""Less than a request is given."""
MARKERS_VERSION = 1


def never_log_in() -> PeerLogin:
    raise AssertionError("the other broker asks for no login")


class SlowBroker:
    """Answers WriteTxnMarkers at once and AddPartitionsToTxn never, as a coordinator that waits for markers does."""

    def __init__(self) -> None:
        self.has_one_waiting = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        api_key, _, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
        if api_key == ADD_PARTITIONS_TO_TXN.key:
            self.has_one_waiting.set()
            await reader.read()
        else:
            body = encoding.encode(WriteTxnMarkersResponse(markers=()), MARKERS_VERSION)
            writer.write(struct.pack(">iib", 5 + len(body), correlation_id, 0) + body)
        writer.close()


async def test_a_marker_does_not_wait_for_requests_that_may_wait_for_it() -> None:
    broker = SlowBroker()
    port = await broker.start()
    brokers = {OTHER: BrokerInfo(OTHER, "127.0.0.1", port)}
    image = MetadataImage(version=1, cluster_id="c", brokers=brokers, controller=ME, topics={}, topic_names_by_id={})
    peers = Peers(ME, lambda: image, PeerSecurity(ssl.create_default_context, never_log_in))
    adding = [
        asyncio.create_task(peers.call(OTHER, ADD_PARTITIONS_TO_TXN, 5, AddPartitionsToTxnRequest())) for _ in range(20)
    ]
    async with asyncio.timeout(PATIENCE_S):
        await broker.has_one_waiting.wait()
        answer = await peers.call(OTHER, WRITE_TXN_MARKERS, MARKERS_VERSION, WriteTxnMarkersRequest(markers=()))
    assert answer == WriteTxnMarkersResponse(markers=())
    assert not any(task.done() for task in adding)
    for task in adding:
        task.cancel()
    await asyncio.gather(*adding, return_exceptions=True)
    await peers.close()
    broker.close()
