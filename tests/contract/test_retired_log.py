"""What every engine promises of the log of a retired partition, and of its successor's: one suite, all engines."""

from __future__ import annotations

import pytest

from penstock.clock import ManualClock
from penstock.errors import ApiError, Code
from penstock.storage.admission import RetiredError
from penstock.storage.contract import Log
from penstock.storage.retention import Hold
from support.logs import DAY_MS, NewLog, append, settings
from support.transactions import end

RETIRED = {"penstock_partitions_retired": "0:1"}
PADDING = b"." * 700
"""With segments of 1024 bytes, one batch with this in it fills a segment."""


async def retired(new_log: NewLog, *, sent: int = 0, producer: int = 7) -> Log:
    """A log that has taken batches of one record each from a producer, and takes no more."""
    log = await new_log()
    for sequence in range(sent):
        await append(log, b"%d" % sequence, producer=producer, sequence=sequence)
    log.configure(settings(**RETIRED))
    return log


async def passed_on(log: Log, *values: bytes, **options: object) -> RetiredError:
    before = log.end_offset
    with pytest.raises(RetiredError) as caught:
        await append(log, *values, **options)
    assert log.end_offset == before
    return caught.value


async def test_it_takes_nothing_and_names_its_successor(new_log: NewLog) -> None:
    log = await retired(new_log)
    error = await passed_on(log, b"a")
    assert (log.successor, error.successor, error.follows) == (1, 1, True)


async def test_a_log_of_another_partition_of_the_topic_goes_on(new_log: NewLog) -> None:
    log = await new_log(penstock_partitions_retired="1:0")
    assert log.successor is None
    assert await append(log, b"a") == 0


async def test_a_repeat_is_answered_with_where_it_is(new_log: NewLog) -> None:
    log = await retired(new_log, sent=3)
    assert [await append(log, b"%d" % each, producer=7, sequence=each) for each in range(3)] == [0, 1, 2]


async def test_a_repeat_too_old_to_say_where_it_is_is_still_a_repeat(new_log: NewLog) -> None:
    log = await retired(new_log, sent=9)
    with pytest.raises(ApiError) as caught:
        await append(log, b"0", producer=7, sequence=0)
    assert caught.value.code is Code.DUPLICATE_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    ("producer", "sequence", "epoch", "follows"),
    [(7, 3, 0, True), (7, 4, 0, False), (7, 0, 1, True), (7, 1, 1, False), (8, 0, 0, True), (8, 5, 0, True)],
)
async def test_it_says_whether_a_batch_would_have_come_next(
    new_log: NewLog, producer: int, sequence: int, epoch: int, follows: bool
) -> None:
    log = await retired(new_log, sent=3)
    error = await passed_on(log, b"x", producer=producer, sequence=sequence, epoch=epoch)
    assert error.follows is follows


async def test_a_producer_of_a_former_epoch_is_fenced(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", producer=7, epoch=2)
    log.configure(settings(**RETIRED))
    with pytest.raises(ApiError) as caught:
        await append(log, b"b", producer=7, epoch=1, sequence=1)
    assert caught.value.code is Code.INVALID_PRODUCER_EPOCH


async def test_markers_can_still_be_written(new_log: NewLog) -> None:
    log = await retired(new_log, sent=1)
    await end(log, 7, commit=True)
    assert log.end_offset == 2


async def test_a_producer_that_was_introduced_goes_on_with_its_sequence(new_log: NewLog) -> None:
    log = await new_log()
    assert not log.producers.knows(7)
    log.producers.introduce(7, 0, 5)
    assert log.producers.knows(7)
    with pytest.raises(ApiError):
        await append(log, b"x", producer=7, sequence=6)
    assert await append(log, b"a", producer=7, sequence=5) == 0
    log.producers.introduce(7, 0, 9)
    assert await append(log, b"b", producer=7, sequence=6) == 1


async def test_retention_leaves_what_is_to_be_kept(new_log: NewLog, clock: ManualClock) -> None:
    log = await new_log(retention_ms=1000, segment_bytes=1024)
    for _ in range(4):
        await append(log, PADDING)
    clock.advance(DAY_MS)
    await log.apply_retention(Hold(2))
    assert (log.start_offset, log.end_offset) == (2, 4)
    await log.apply_retention(Hold(0))
    assert log.start_offset == 2
    await log.apply_retention()
    assert log.start_offset == 4
