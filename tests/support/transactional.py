"""A transactional producer, and a read_committed reader, of which every request can be seen, changed or held back.

A producer speaks the protocol before KIP-890 (partitions are added first, epochs stay) or the one after it (writing
adds, every transaction ends with the next epoch).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from penstock.protocol import apis
from penstock.protocol.decoding import decode
from penstock.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from penstock.protocol.messages.end_txn import EndTxnRequest
from penstock.protocol.messages.init_producer_id import InitProducerIdRequest
from penstock.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from penstock.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from penstock.records.batch import TRANSACTIONAL_BIT, read_header
from penstock.records.control import read_marker
from support.logs import seen, split
from support.wire import FETCH_BY_NAME, Wire, batch_of, fetch_request, produce_request

Place = tuple[str, int]
"""Topic and partition."""

READ_COMMITTED = 1

REFUSED = (47, 48, 90, 120)
"""INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, PRODUCER_FENCED, TRANSACTION_ABORTABLE: who is too late is told one."""

SHORT_MS = 300
"""A transaction's time, where it has to be over soon."""


class Protocol(Enum):
    """Versions of (InitProducerId, Produce, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn)."""

    OLD = (4, 11, 3, 3, 3, 4)
    NEW = (5, 12, 3, 4, 5, 5)

    @property
    def init(self) -> int:
        return self.value[0]

    @property
    def produce(self) -> int:
        return self.value[1]

    @property
    def add(self) -> int:
        return self.value[2]

    @property
    def add_offsets(self) -> int:
        return self.value[3]

    @property
    def commit_offsets(self) -> int:
        return self.value[4]

    @property
    def end(self) -> int:
        return self.value[5]


class RawProducer:
    """Knows its id, its epoch and its sequence numbers as a client does; answers are given as they come."""

    def __init__(self, wire: Wire, name: str, protocol: Protocol = Protocol.NEW, timeout_ms: int = 60_000) -> None:
        self.wire = wire
        self.name = name
        self.protocol = protocol
        self.timeout_ms = timeout_ms
        self.id = -1
        self.epoch = -1
        self._next: dict[Place, int] = {}
        self._added: set[Place] = set()

    def init(self, **changed: Any) -> int:
        """Asks for an id and an epoch, as somebody new unless told otherwise."""
        fields: dict[str, Any] = {"transactional_id": self.name, "transaction_timeout_ms": self.timeout_ms} | changed
        answer = self.wire.ask(apis.INIT_PRODUCER_ID, self.protocol.init, InitProducerIdRequest(**fields))
        if answer["error_code"] == 0:
            self._become(answer)
        code: int = answer["error_code"]
        return code

    def bump(self) -> int:
        """Asks for the next epoch, as who it is (KIP-360)."""
        return self.init(producer_id=self.id, producer_epoch=self.epoch)

    def add(self, *places: Place, **changed: Any) -> dict[Place, int]:
        """Says what it is going to write to; gives the code of each."""
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        fields: dict[str, Any] = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": tuple(
                AddPartitionsToTxnTopic(name=topic, partitions=tuple(indexes)) for topic, indexes in topics.items()
            ),
        } | changed
        version = fields.pop("version", self.protocol.add)
        answer = self.wire.ask(apis.ADD_PARTITIONS_TO_TXN, version, AddPartitionsToTxnRequest(**fields))
        codes = {
            (topic["name"], found["partition_index"]): found["partition_error_code"]
            for topic in answer["results_by_topic_v3_and_below"]
            for found in topic["results_by_partition"]
        }
        self._added.update(place for place, code in codes.items() if code == 0)
        return codes

    def add_as_brokers_do(self, version: int, *places: Place) -> dict[Place, int]:
        """The same with a version that names several transactions: most clients leave it to brokers, a few do not."""
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=tuple(AddPartitionsToTxnTopic(name=topic, partitions=(index,)) for topic, index in places),
        )
        request = AddPartitionsToTxnRequest(transactions=(transaction,))
        answer = self.wire.ask(apis.ADD_PARTITIONS_TO_TXN, version, request)
        assert answer["error_code"] == 0, answer
        (result,) = answer["results_by_transaction"]
        return {
            (topic["name"], found["partition_index"]): found["partition_error_code"]
            for topic in result["topic_results"]
            for found in topic["results_by_partition"]
        }

    def write(self, place: Place, *values: bytes, **changed: Any) -> int:
        """Writes, in the old protocol to a partition that it adds first; fails if that is refused. Gives the offset."""
        if self.protocol is Protocol.OLD and place not in self._added:
            codes = self.add(place)
            assert codes == {place: 0}, codes
        result = self.produce(place, *values, **changed)
        assert result["error_code"] == 0, result
        offset: int = result["base_offset"]
        return offset

    def produce(self, place: Place, *values: bytes, **changed: Any) -> dict[str, Any]:
        """Sends one batch, whatever becomes of it; gives the partition's part of the answer."""
        return self.send(self.held(place, *values, **changed))

    def held(self, place: Place, *values: bytes, **changed: Any) -> dict[str, Any]:
        """A produce request as it would be sent now."""
        fields: dict[str, Any] = {
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "base_sequence": self._next.get(place, 0),
            "attributes": TRANSACTIONAL_BIT,
        } | changed
        name = fields.pop("transactional_id", self.name)
        acks = fields.pop("acks", -1)
        if fields["producer_id"] == self.id and fields["producer_epoch"] == self.epoch:
            self._next[place] = fields["base_sequence"] + len(values)
        topic, partition = place
        return produce_request(
            topic, batch_of(*values, **fields), partition=partition, transactional_id=name, acks=acks
        )

    def send(self, held: dict[str, Any], version: int | None = None) -> dict[str, Any]:
        """Sends a produce request that was held back; gives the partition's part of the answer."""
        answer = self.wire.ask(apis.PRODUCE, version or self.protocol.produce, held)
        ((result,),) = (response["partition_responses"] for response in answer["responses"])
        outcome: dict[str, Any] = result
        return outcome

    def add_offsets(self, group: str, **changed: Any) -> int:
        fields: dict[str, Any] = {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "group_id": group,
        } | changed
        version = fields.pop("version", self.protocol.add_offsets)
        code: int = self.wire.ask(apis.ADD_OFFSETS_TO_TXN, version, AddOffsetsToTxnRequest(**fields))["error_code"]
        return code

    def commit_offsets(self, group: str, offsets: Mapping[Place, int], **changed: Any) -> dict[Place, int]:
        """Commits a group's offsets in the transaction, without a member unless told otherwise; gives their codes."""
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        metadata = changed.pop("metadata", "")
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        fields: dict[str, Any] = {
            "transactional_id": self.name,
            "group_id": group,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "topics": tuple(
                TxnOffsetCommitRequestTopic(name=topic, partitions=tuple(parts)) for topic, parts in topics.items()
            ),
        } | changed
        version = fields.pop("version", self.protocol.commit_offsets)
        answer = self.wire.ask(apis.TXN_OFFSET_COMMIT, version, TxnOffsetCommitRequest(**fields))
        return {
            (topic["name"], found["partition_index"]): found["error_code"]
            for topic in answer["topics"]
            for found in topic["partitions"]
        }

    def take_along(self, group: str, offsets: Mapping[Place, int], **changed: Any) -> None:
        """Commits offsets in the transaction; fails if that is refused."""
        if self.protocol is Protocol.OLD:
            assert self.add_offsets(group) == 0
        codes = self.commit_offsets(group, offsets, **changed)
        assert set(codes.values()) == {0}, codes

    def commit(self) -> int:
        return self.end(committed=True)

    def abort(self) -> int:
        return self.end(committed=False)

    def end(self, *, committed: bool, **changed: Any) -> int:
        """Ends the transaction; in the new protocol it goes on with the epoch that it is given."""
        version = changed.pop("version", self.protocol.end)
        answer = self.wire.ask(apis.END_TXN, version, self.held_end(committed=committed, **changed))
        code: int = answer["error_code"]
        if code == 0:
            self._added.clear()
            if version >= Protocol.NEW.end:
                self._become(answer)
        return code

    def held_end(self, *, committed: bool, **changed: Any) -> EndTxnRequest:
        """An EndTxn as it would be sent now."""
        fields: dict[str, Any] = {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "committed": committed,
        } | changed
        return EndTxnRequest(**fields)

    def _become(self, answer: dict[str, Any]) -> None:
        if (self.id, self.epoch) != (answer["producer_id"], answer["producer_epoch"]):
            self.id, self.epoch = answer["producer_id"], answer["producer_epoch"]
            self._next.clear()
        self._added.clear()


def begun(wire: Wire, name: str, protocol: Protocol = Protocol.NEW, timeout_ms: int = 60_000) -> RawProducer:
    """A producer that has its id and epoch."""
    producer = RawProducer(wire, name, protocol, timeout_ms)
    assert producer.init() == 0
    return producer


class Read(NamedTuple):
    """What a read_committed fetch gave."""

    values: list[bytes]
    """Of the records that count."""
    stable: int
    """The last stable offset."""
    end: int
    """The high watermark."""
    aborted: list[tuple[int, int]]
    """(producer id, first offset) of aborted transactions, in the order of the answer."""
    markers: list[tuple[int, bool]]
    """(offset, whether it commits) of the control batches."""
    next_offset: int
    """Where to read on."""


def read_committed(wire: Wire, place: Place, offset: int = 0, **options: Any) -> Read:
    """Fetches once, and leaves out of the answer what a client leaves out; `options` as of `fetch_request`."""
    topic, partition = place
    request = fetch_request([(topic, partition, offset)], FETCH_BY_NAME, **options)
    request["isolation_level"] = READ_COMMITTED
    return read_answer(wire.ask(apis.FETCH, FETCH_BY_NAME, request))


def read_answer(answer: dict[str, Any]) -> Read:
    ((found,),) = (response["partitions"] for response in answer["responses"])
    assert found["error_code"] == 0, found
    assert found["aborted_transactions"] is not None
    aborted = [(entry["producer_id"], entry["first_offset"]) for entry in found["aborted_transactions"]]
    waiting = sorted(aborted, key=lambda entry: entry[1])
    left_out: set[int] = set()
    values: list[bytes] = []
    markers: list[tuple[int, bool]] = []
    next_offset = -1
    for batch in split(found["records"] or b""):
        header = read_header(batch)
        next_offset = header.next_offset
        while waiting and waiting[0][1] <= header.last_offset:
            left_out.add(waiting.pop(0)[0])
        if header.is_control:
            marker = read_marker(memoryview(batch), header)
            assert marker is not None
            markers.append((header.base_offset, marker.committed))
            if not marker.committed:
                left_out.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in left_out):
            values += [record.value or b"" for record in seen(batch)]
    return Read(values, found["last_stable_offset"], found["high_watermark"], aborted, markers, next_offset)


def all_committed(wire: Wire, place: Place) -> list[bytes]:
    """What a reader sees that reads on and on in small steps, to the last stable offset."""
    values: list[bytes] = []
    offset = 0
    while offset < last_offset(wire, place, READ_COMMITTED):
        read = read_committed(wire, place, offset, partition_max_bytes=3000)
        values += read.values
        assert read.next_offset > offset
        offset = read.next_offset
    return values


def last_offset(wire: Wire, place: Place, isolation_level: int) -> int:
    """What ListOffsets says is the end."""
    topic, partition = place
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=(ListOffsetsTopic(name=topic, partitions=(wanted,)),),
    )
    ((found,),) = (each["partitions"] for each in wire.ask(apis.LIST_OFFSETS, 7, request)["topics"])
    assert found["error_code"] == 0, found
    offset: int = found["offset"]
    return offset


def committed_offset(wire: Wire, group: str, place: Place, *, require_stable: bool = False) -> tuple[int, int]:
    """(error code, offset) of OffsetFetch."""
    topic, partition = place
    wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=(partition,))
    request = OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id=group, topics=(wanted,)),), require_stable=require_stable
    )
    (answer,) = wire.ask(apis.OFFSET_FETCH, 8, request)["groups"]
    assert answer["error_code"] == 0, answer
    ((found,),) = (each["partitions"] for each in answer["topics"])
    return found["error_code"], found["committed_offset"]


def described(wire: Wire, *names: str) -> list[TransactionState]:
    """What DescribeTransactions says; read by our codec, because kio knows no time before 1970, which is Kafka's word
    for none.
    """
    wire.send(apis.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(transactional_ids=names))
    answer, _ = decode(DescribeTransactionsResponse, 0, wire.frame()[5:])
    return list(answer.transaction_states)


def state_of(wire: Wire, name: str) -> str:
    """The state of an id that is known."""
    (found,) = described(wire, name)
    assert found.error_code == 0, found
    return found.transaction_state
