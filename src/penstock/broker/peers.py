"""Requests to the other brokers of the cluster, through their inter-broker listeners.

There are a few connections to each broker, opened when they are needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.cluster.metadata import ListenerEndpoint, MetadataImage
from penstock.errors import PeerError
from penstock.ids import BrokerId, broker_client_id
from penstock.net.peer import Peer, PeerSecurity
from penstock.protocol import decoding, encoding, replica_fetch
from penstock.protocol.apis import FETCH, Api
from penstock.protocol.fetch import FetchPartition
from penstock.replication.partition import Partition

_CONNECTIONS = 4
"""To each broker for each kind of request; a connection has one request under way."""
_MAX_ANSWER_BYTES = 16 << 20
_TIMEOUT_S = 10.0
_NO_REPLICA = -1
_ANY_RACK = "penstock-repair"


class _Lines:
    """The connections to one broker at one address, for one kind of request.

    Kinds do not share them: a request to add a partition may wait for the end of a transaction, which may wait for a
    marker that this broker is about to send.
    """

    def __init__(self) -> None:
        self.idle: list[Peer] = []
        self.free = asyncio.Semaphore(_CONNECTIONS)


class Peers:
    def __init__(self, me: BrokerId, image: Callable[[], MetadataImage], security: PeerSecurity) -> None:
        self._me = me
        self._security = security
        self._image = image
        self._lines: dict[tuple[str, int, int], _Lines] = {}

    async def call(self, broker: BrokerId, api: Api, version: int, request: object) -> Any:
        """The other broker's response; PeerError if it is not there or does not answer."""
        body = await self._call(broker, api, version, encoding.encode(request, version))
        return decoding.decode(api.response, version, body, 0)[0]

    async def fetch(self, broker: BrokerId, partition: Partition, offset: int, max_bytes: int) -> memoryview:
        """Batches of a partition that the other broker leads or follows, as a consumer gets them."""
        at, topic_id = partition.topic_partition, partition.log.topic_id.bytes
        wanted = FetchPartition(None, topic_id, at.partition, -1, offset, -1, 0, max_bytes)
        request = replica_fetch.encode_request(
            _NO_REPLICA,
            -1,
            [wanted],
            session_id=0,
            session_epoch=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            # A follower serves only who asks for the nearest replica; the leader would send the others away.
            rack="" if partition.leader == broker else _ANY_RACK,
        )
        body = await self._call(broker, FETCH, replica_fetch.VERSION, request)
        code, _, results = replica_fetch.decode_response(body)
        if code or not results or results[0].error_code:
            raise PeerError(f"broker {broker} answers {code or (results and results[0].error_code)}")
        return results[0].records

    async def _call(self, broker: BrokerId, api: Api, version: int, request: bytes) -> memoryview:
        info = self._image().brokers.get(broker)
        if info is None or not info.is_alive:
            raise PeerError(f"broker {broker} is not alive")
        endpoint = info.inter_broker_endpoint
        lines = self._lines.setdefault((endpoint.host, endpoint.port, api.key), _Lines())
        async with lines.free:
            peer = lines.idle.pop() if lines.idle else self._connect(endpoint)
            try:
                # A request runs outside any task until it first waits, and a call has to be in one.
                body = await peer.start_call(api.key, version, request, is_flexible=version >= api.flexible_from)
            except PeerError:
                await peer.close()
                raise
            lines.idle.append(peer)
        return body

    async def close(self) -> None:
        lines, self._lines = self._lines, {}
        for found in lines.values():
            for peer in found.idle:
                await peer.close()

    def _connect(self, endpoint: ListenerEndpoint) -> Peer:
        return Peer(
            endpoint.host,
            endpoint.port,
            broker_client_id(self._me),
            max_answer_bytes=_MAX_ANSWER_BYTES,
            timeout_s=_TIMEOUT_S,
            tls=self._security.tls if endpoint.protocol.has_tls else None,
            login=self._security.login if endpoint.protocol.has_sasl else None,
        )
