"""Appends that are under way at the same time, on engines whose writes suspend and on those whose writes do not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.clock import SystemClock
from penstock.cluster.metadata import PartitionImage
from penstock.delay.delays import Delays
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId, companion_of
from penstock.protocol.replica_fetch import ReplicaResult
from penstock.records.batch import ASIDE_BIT, PAIRED_BIT, read_header, stamp
from penstock.records.records import Headers, Record, build_batch
from penstock.replication.companion_pair import CompanionPair
from penstock.replication.follower_replica import FollowerReplica
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.storage.companions import companion_config
from penstock.storage.contract import Appended, Engine, Log
from support.leading import LAG_RULES, ME, for_ever
from support.logs import AT, NOW_MS, TOPIC_ID, append_batch, batch, read_all, read_batches, settings
from support.transactions import txn_batch
from support.waiting import PATIENCE_S

OTHER = BrokerId(2)
HOUR: Headers = (("penstock-delay", b"1h"),)
HALVES = ASIDE_BIT | PAIRED_BIT


@pytest.fixture
async def partition(engine: Engine) -> AsyncIterator[Partition]:
    """A partition that leads, alone, and takes delayed records."""
    log = await engine.create(AT, TOPIC_ID, settings())

    async def make() -> Log:
        return await engine.create(companion_of(AT), TOPIC_ID, companion_config(log.config))

    delays = Delays(SystemClock())
    made = Partition(log, for_ever(), CompanionPair(log, make=make), delays)
    made.lead(ME, PartitionImage(0, ME, 0, (ME,), (ME,)), frozenset({ME}), LAG_RULES)
    delays.role_changed(made)
    yield made
    await delays.close()


async def append(partition: Partition, made: bytearray, guard: int | None = None) -> Appended:
    return await partition.append(memoryview(made), ALL_IN_SYNC, guard=guard)


def with_headers(*records: tuple[bytes, Headers]) -> bytearray:
    return build_batch([Record(None, value, headers, NOW_MS) for value, headers in records])


async def check_pairs(partition: Partition) -> int:
    """Fails unless both halves of every pair lie at the same offsets; gives the number of pairs."""
    companion = partition.pair.companion
    assert companion is not None
    found = []
    for log in (partition.log, companion):
        headers = [read_header(each) for each in await read_batches(log)]
        ends = [header.next_offset for header in headers]
        assert all(header.base_offset >= end for header, end in zip(headers[1:], ends, strict=False)), "they overlap"
        found.append({(each.base_offset, each.last_offset) for each in headers if each.attributes & HALVES})
    assert found[0] == found[1]
    return len(found[0])


class Growth:
    """Waits for a partition to have more."""

    def __init__(self) -> None:
        self.happened = asyncio.Event()

    def grew(self, appended_bytes: int) -> None:
        self.happened.set()


async def until(partition: Partition, is_enough: Callable[[list[bytes | None]], bool]) -> list[bytes | None]:
    """The values in the log, as soon as they are enough."""
    growth = Growth()
    partition.park(growth)
    async with asyncio.timeout(PATIENCE_S):
        while not is_enough(found := [record.value for record in await read_all(partition.log)]):
            await growth.happened.wait()
            growth.happened.clear()
    partition.unpark(growth)
    return found


async def test_appends_at_the_same_time_get_offsets_of_their_own(partition: Partition) -> None:
    values = [(b"%d" % number, b"and %d" % number) for number in range(50)]
    appended = await asyncio.gather(*(append(partition, batch(*pair)) for pair in values))
    assert sorted(each.base_offset for each in appended) == list(range(0, 100, 2))
    expected = {
        each.base_offset + place: value
        for each, pair in zip(appended, values, strict=True)
        for place, value in enumerate(pair)
    }
    assert {record.offset: record.value for record in await read_all(partition.log)} == expected


async def test_of_copies_sent_at_the_same_time_all_but_one_are_repeats(partition: Partition) -> None:
    appended = await asyncio.gather(*(append(partition, batch(b"once", producer=7)) for _ in range(10)))
    assert {each.base_offset for each in appended} == {0}
    assert Counter(each.is_repeat for each in appended) == {True: 9, False: 1}
    assert partition.log.end_offset == 1


async def test_a_sequence_is_compared_with_what_was_written_before_it(partition: Partition) -> None:
    sent = [batch(b"%d" % number, producer=7, sequence=number) for number in range(20)]
    appended = await asyncio.gather(*(append(partition, each) for each in sent))
    assert [each.base_offset for each in appended] == list(range(20))
    with pytest.raises(ApiError) as caught:
        await append(partition, batch(b"far ahead", producer=7, sequence=30))
    assert caught.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_transaction_is_ended_by_one_marker_at_a_time(partition: Partition) -> None:
    guard = partition.log.producers.guard(7)
    await append(partition, txn_batch(b"in it", producer=7), guard)

    async def end(epoch: int) -> None:
        await partition.append_marker(7, epoch, committed=True, coordinator_epoch=epoch)

    await asyncio.gather(end(1), end(2), append(partition, batch(b"another's")))
    assert (partition.log.end_offset, partition.last_stable_offset) == (4, 4)
    with pytest.raises(ApiError) as caught:
        await end(1)
    assert caught.value.code is Code.INVALID_PRODUCER_EPOCH


async def test_both_halves_of_a_batch_lie_at_the_same_offsets(partition: Partition) -> None:
    guard = partition.log.producers.guard(7)
    delayed = with_headers((b"now", ()), (b"later", HOUR), (b"much later", HOUR))
    in_transaction = build_batch(
        [Record(None, b"later, if committed", HOUR, NOW_MS)],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        attributes=read_header(txn_batch(b"", producer=7)).attributes,
    )
    await asyncio.gather(
        append(partition, in_transaction, guard),
        *(append(partition, bytearray(delayed)) for _ in range(10)),
        *(append(partition, batch(b"plain", b"plain too")) for _ in range(10)),
    )
    await asyncio.gather(
        partition.append_marker(7, 0, committed=True, coordinator_epoch=0),
        *(append(partition, bytearray(delayed)) for _ in range(10)),
        *(append(partition, batch(b"plain")) for _ in range(10)),
    )
    assert partition.log.end_offset == 1 + 10 * 3 + 10 * 2 + 1 + 10 * 3 + 10
    assert await check_pairs(partition) == 22


async def test_messages_due_while_others_are_put_aside_are_delivered_once(partition: Partition) -> None:
    """Each is due a few milliseconds after it is sent: while some are written, others are delivered."""
    sent = [b"%d" % number for number in range(300)]
    for start in range(0, len(sent), 10):
        await asyncio.gather(
            *(
                append(partition, with_headers((value, (("penstock-delay", b"%d" % (int(value) % 7 + 1)),))))
                for value in sent[start : start + 10]
            )
        )
    await until(partition, lambda found: len(found) >= len(sent))
    # A message that is delivered twice would come before this one.
    await append(partition, with_headers((b"last", (("penstock-delay", b"1"),))))
    found = await until(partition, lambda found: found[-1] == b"last")
    assert Counter(found) == Counter([*sent, b"last"])
    await check_pairs(partition)


@pytest.mark.parametrize("steps", range(8))
async def test_an_append_that_is_cancelled_shares_no_offset_with_the_next(partition: Partition, steps: int) -> None:
    await append(partition, batch(b"first"))
    cancelled = asyncio.create_task(append(partition, with_headers((b"gone", HOUR), (b"cancelled", ()))))
    for _ in range(steps):
        await asyncio.sleep(0)
    cancelled.cancel()
    following = await asyncio.gather(*(append(partition, batch(b"%d" % number)) for number in range(5)))
    await asyncio.wait([cancelled])
    found = {record.offset: record.value for record in await read_all(partition.log)}
    assert [found[each.base_offset] for each in following] == [b"%d" % number for number in range(5)]
    await append(partition, with_headers((b"delayed", HOUR)))
    await check_pairs(partition)


async def test_a_follower_is_cut_only_when_its_last_write_as_leader_has_ended(partition: Partition) -> None:
    await append(partition, batch(b"kept"))
    late = [asyncio.create_task(append(partition, batch(b"late"))) for _ in range(3)]
    await asyncio.sleep(0)
    partition.follow(OTHER, 1)
    async with partition.pair.writing():
        await partition.pair.cut(1)
    refused = await asyncio.gather(*late, return_exceptions=True)
    assert all(isinstance(each, ApiError | Appended) for each in refused)
    assert (partition.log.end_offset, [record.value for record in await read_all(partition.log)]) == (1, [b"kept"])


async def test_a_checked_batch_is_not_in_the_log_before_it_is_written(engine: Engine) -> None:
    log = await engine.create(AT, TOPIC_ID, settings())
    await append_batch(log, memoryview(batch(b"first", producer=7)), 0)
    checked = log.check(memoryview(batch(b"second", producer=7, sequence=1)))
    assert log.end_offset == 1
    with pytest.raises(ApiError):
        log.check(memoryview(batch(b"third", producer=7, sequence=2)))
    await log.write(checked, 1, 0)
    assert log.check(memoryview(batch(b"second", producer=7, sequence=1))).repeat_of == 1
    await log.secure(1)
    assert [record.value for record in await read_all(log)] == [b"first", b"second"]


@pytest.mark.parametrize("engine", ["suspending"], indirect=True)
async def test_a_replica_that_leads_again_does_not_take_what_it_fetched_as_a_follower(partition: Partition) -> None:
    await append(partition, batch(b"as leader"))
    partition.follow(OTHER, 1)
    replica = FollowerReplica(partition)
    asked = replica.wanted(1 << 20)
    sent = batch(b"of the other leader")
    stamp(memoryview(sent), asked.fetch_offset, 1)
    result = ReplicaResult(TOPIC_ID.bytes, 0, 0, 0, 0, memoryview(sent), None)
    async with partition.pair.writing():
        taking = asyncio.create_task(replica.take(asked, result))
        await asyncio.sleep(0)
        partition.lead(ME, PartitionImage(0, ME, 2, (ME,), (ME,)), frozenset({ME}), LAG_RULES)
    await taking
    await append(partition, batch(b"as leader again"))
    assert [record.value for record in await read_all(partition.log)] == [b"as leader", b"as leader again"]
