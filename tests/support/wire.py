"""A Kafka connection with nothing between the test and the bytes.

Requests are encoded by our codec, and Produce and Fetch, which ours only decodes, by kio; every answer is read by kio,
an independent implementation, as a plain value: a dict by Kafka's field names.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any
from uuid import UUID

from penstock.protocol import apis
from penstock.protocol.apis import Api
from penstock.protocol.encoding import encode
from penstock.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from penstock.protocol.messages.init_producer_id import InitProducerIdRequest
from penstock.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.records.records import Record, build_batch
from support.waiting import PATIENCE_S
from unit.protocol.kio_oracle import kio_class, kio_read, kio_write

FETCH_BY_NAME = 12
FETCH_BY_ID = 16
PRODUCE = 11


def request_frame(api: Api, version: int, correlation_id: int, body: bytes, client_id: str = "test") -> bytes:
    """A whole request: size, header and body."""
    header = struct.pack(">hhih", api.key, version, correlation_id, len(client_id)) + client_id.encode()
    if version >= api.flexible_from:
        header += b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def body_of(api: Api, version: int, message: Any) -> bytes:
    """A request body from one of our messages or, where there is no encoder of ours, from a plain value."""
    if isinstance(message, dict):
        return kio_write(kio_class(api, version, "Request"), message)
    return encode(message, version)


class Wire:
    """One connection; closes on leaving its `with`."""

    def __init__(
        self,
        address: tuple[str, int],
        patience_s: float = PATIENCE_S,
        receive_buffer: int = 0,
        client_id: str = "test",
    ) -> None:
        self._client_id = client_id
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(patience_s)
        self.socket.connect(address)
        self._correlation_id = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, api: Api, version: int, message: Any) -> int:
        """Sends one request and gives its correlation id."""
        self._correlation_id += 1
        body = body_of(api, version, message)
        self.socket.sendall(request_frame(api, version, self._correlation_id, body, self._client_id))
        return self._correlation_id

    def receive(self, api: Api, version: int, correlation_id: int) -> dict[str, Any]:
        """The next answer, which must be the one to this request."""
        frame = self.frame()
        assert struct.unpack_from(">i", frame)[0] == correlation_id
        flexible = version >= api.flexible_from and api is not apis.API_VERSIONS
        return kio_read(kio_class(api, version, "Response"), frame[5 if flexible else 4 :])

    def ask(self, api: Api, version: int, message: Any) -> dict[str, Any]:
        return self.receive(api, version, self.send(api, version, message))

    def frame(self) -> bytes:
        """The next frame without its size; EOFError where the broker has closed the connection."""
        (size,) = struct.unpack(">i", self.exactly(4))
        return self.exactly(size)

    def exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            try:
                part = self.socket.recv(min(count - len(received), 1 << 20))
            except ConnectionResetError:
                part = b""
            if not part:
                raise EOFError(f"closed by the broker after {len(received)} of {count} bytes")
            received += part
        return bytes(received)

    def is_closed_by_broker(self, within_s: float = PATIENCE_S) -> bool:
        """Waits for the broker to close; what it still sends is thrown away."""
        deadline = time.monotonic() + within_s
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                if not self.socket.recv(1 << 16):
                    return True
            except ConnectionResetError:
                return True
            except TimeoutError:
                return False
        return False

    def has_answer(self, within_s: float) -> bool:
        """Whether anything arrives in this time; it stays to be received."""
        before = self.socket.gettimeout()
        self.socket.settimeout(within_s)
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(before)

    def create_topic(self, name: str, partitions: int = 1, **configs: object) -> UUID:
        """Creates a topic and gives its id; dots in the settings' names are written as underscores."""
        settings = tuple(
            CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in configs.items()
        )
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=settings
        )
        answer = self.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest(topics=(topic,), timeout_ms=10_000))
        (created,) = answer["topics"]
        assert created["error_code"] == 0, created
        found: UUID = created["topic_id"]
        return found

    def metadata(self, name: str, version: int = 12) -> dict[str, Any]:
        """What the cluster says of one topic, which is not created by asking."""
        asked = MetadataRequest(topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=False)
        (found,) = self.ask(apis.METADATA, version, asked)["topics"]
        described: dict[str, Any] = found
        return described

    def producer_id(self) -> int:
        answer = self.ask(apis.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transaction_timeout_ms=1000))
        assert answer["error_code"] == 0, answer
        found: int = answer["producer_id"]
        return found

    def produce(self, topic: str, records: bytes | None, **options: Any) -> dict[str, Any]:
        """The one partition's part of the answer."""
        version = options.pop("version", PRODUCE)
        answer = self.ask(apis.PRODUCE, version, produce_request(topic, records, **options))
        ((result,),) = (response["partition_responses"] for response in answer["responses"])
        outcome: dict[str, Any] = result
        return outcome

    def fetch(self, topic: str | UUID, offset: int, **options: Any) -> dict[str, Any]:
        """The one partition's part of the answer."""
        version = options.pop("version", FETCH_BY_NAME if isinstance(topic, str) else FETCH_BY_ID)
        answer = self.ask(apis.FETCH, version, fetch_request([(topic, 0, offset)], version, **options))
        assert answer.get("error_code", 0) == 0, answer
        ((result,),) = (response["partitions"] for response in answer["responses"])
        outcome: dict[str, Any] = result
        return outcome


def produce_request(
    topic: str, records: bytes | None, *, acks: int = -1, partition: int = 0, transactional_id: str | None = None
) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout_ms": 10_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
    }


def fetch_request(
    wanted: Sequence[tuple[str | UUID, int, int]],
    version: int = FETCH_BY_NAME,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 26,
    partition_max_bytes: int = 1 << 20,
    leader_epoch: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
) -> dict[str, Any]:
    """A fetch of (topic name or id, partition, offset) each; a version above the one by name takes ids."""
    by_id = version > FETCH_BY_NAME
    request: dict[str, Any] = {
        "replica_id": -1,
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "topics": [
            {
                "topic_id" if by_id else "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "current_leader_epoch": leader_epoch,
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": partition_max_bytes,
                    }
                ],
            }
            for topic, partition, offset in wanted
        ],
        "session_id": session_id,
        "session_epoch": session_epoch,
        "forgotten_topics_data": [],
        "rack_id": "",
        "cluster_id": None,
        "replica_state": {"replica_id": -1, "replica_epoch": -1},
    }
    return request


def batch_of(*values: bytes, **options: Any) -> bytes:
    """A record batch of these values, stamped with now."""
    now_ms = int(time.time() * 1000)
    return bytes(build_batch([Record(None, value, timestamp_ms=now_ms) for value in values], **options))
