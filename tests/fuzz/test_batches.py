"""Random and mutated batches and files: only our own errors, no hunger for memory, and no sound batch is lost."""

from __future__ import annotations

import asyncio
import tempfile
import tracemalloc
from pathlib import Path

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from penstock.errors import ApiError
from penstock.ids import TopicPartition
from penstock.records.batch import HEADER_BYTES, read_header, stamp
from penstock.records.compression import Codec, decompress
from penstock.records.records import headers_of, records_block, walk
from penstock.storage.admission import check_batch
from penstock.storage.files import Files
from penstock.storage.segmented.disk.identity import Identity, write_identity
from penstock.storage.segmented.engine import SegmentedEngine
from support import logs
from support.logs import AT, EPOCH, TOPIC_ID, append_batch, batch, open_engine, read_around_damage

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
FILES = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
CONFIG = logs.settings(segment_bytes=4096, index_interval_bytes=256)
MUTATIONS = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=6)

_BATCHES = [bytes(batch(b"a" * 50, b"b", None, keys=[b"k", None, b""], codec=codec)) for codec in Codec]


def mutated(content: bytes, changes: list[tuple[int, int]]) -> bytearray:
    changed = bytearray(content)
    for at, difference in changes:
        if changed:
            changed[at % len(changed)] ^= difference
    return changed


@FUZZ
@given(st.sampled_from(_BATCHES), MUTATIONS, st.integers(0, 200))
def test_a_mutated_batch_is_refused_with_an_error_of_ours(
    sent: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    changed = memoryview(mutated(sent, changes)[: len(sent) - cut if cut < len(sent) else None])
    try:
        check_batch(changed)
    except ApiError:
        return
    assert len(changed) == len(sent)
    assert changed[21:] == memoryview(sent)[21:], "the CRC covers all from there on"


@FUZZ
@given(st.sampled_from(_BATCHES), MUTATIONS)
def test_records_of_a_mutated_batch_decode_or_fail_with_an_error_of_ours(
    sent: bytes, changes: list[tuple[int, int]]
) -> None:
    """Whoever skips the CRC, or has a producer that computes it over nonsense."""
    changed = memoryview(bytes(sent[:57]) + bytes(mutated(sent[57:], changes)))
    header = read_header(changed)._replace(length=len(changed) - 12)
    tracemalloc.start()
    try:
        block = records_block(changed, header)
        for record in walk(block, header.record_count):
            headers_of(block, record)
    except ApiError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 8_000_000


@FUZZ
@given(st.sampled_from(list(Codec)), st.binary(max_size=300))
def test_random_bytes_decompress_or_fail_with_an_error_of_ours(codec: Codec, block: bytes) -> None:
    try:
        decompress(codec, block, limit=1_000_000)
    except ApiError:
        pass


@FUZZ
@given(st.binary(max_size=200), st.integers(-5, 1 << 31))
def test_random_bytes_walk_or_fail_with_an_error_of_ours(block: bytes, count: int) -> None:
    try:
        for record in walk(memoryview(block), count):
            headers_of(memoryview(block), record)
    except ApiError:
        pass


def segments(count: int) -> dict[str, bytes]:
    """The `.log` files of a log of `count` batches of one record each, three batches a segment."""
    files: dict[str, bytes] = {}
    for offset in range(count):
        made = batch(b"%d" % offset + b"x" * (offset * 37 % 300), producer=1, sequence=offset)
        stamp(memoryview(made), offset, EPOCH)
        name = f"{offset - offset % 3:020d}.log"
        files[name] = files.get(name, b"") + bytes(made)
    return files


async def recovered(folder: Path, files: dict[str, bytes]) -> SegmentedEngine:
    target = folder / str(AT)
    target.mkdir(parents=True)
    write_identity(Files(), target, Identity(TOPIC_ID, TopicPartition(*AT)))
    for name, content in files.items():
        (target / name).write_bytes(content)
    return await open_engine(folder, CONFIG)


@FILES
@given(st.data())
def test_recovery_keeps_every_batch_that_is_not_damaged(data: st.DataObject) -> None:
    files = segments(9)
    name = data.draw(st.sampled_from(sorted(files)))
    content = files[name]
    changes = data.draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(1, 255)), max_size=4))
    files[name] = bytes(mutated(content, changes))
    hit, misplaced, position = set(), set(), 0
    for offset in range(int(name[:20]), int(name[:20]) + 3):
        size = read_header(content, position).size
        # The leader epoch is the one field that nothing vouches for.
        changed = [at for at in range(position, position + size) if content[at] != files[name][at]]
        if any(not position + 12 <= at < position + 16 for at in changed):
            hit.add(offset)
        if any(at < position + 8 for at in changed):
            misplaced.add(offset)
        position += size

    # The CRC does not cover the offset: a wrong one is known by the batch behind it, if that one is there and sound.
    assume(not any(offset == 8 or offset + 1 in hit for offset in misplaced))

    async def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            engine = await recovered(Path(folder) / "logs", files)
            log = engine.logs[AT]
            found, bad = await read_around_damage(log)
            assert {record.offset for record in found} == set(range(9)) - hit
            assert all((record.value or b"").startswith(b"%d" % record.offset) for record in found)
            assert set(bad) <= hit
            end = log.end_offset
            assert (await append_batch(log, memoryview(batch(b"next")), EPOCH)).base_offset == end
            after, _ = await read_around_damage(log)
            assert after[:-1] == found and after[-1].value == b"next"
            await engine.close()

    asyncio.run(check())


@FILES
@given(st.data())
def test_recovery_survives_any_files(data: st.DataObject) -> None:
    names = st.sampled_from(
        [
            f"{offset:020d}{suffix}"
            for offset in (0, 3, 6)
            for suffix in (".log", ".index", ".timeindex", ".aborted", ".producers")
        ]
        + ["epochs", "compaction.json", f"{0:020d}-{3:020d}.swap", f"{0:020d}-{3:020d}.cleaned", "other"]
    )
    sound = segments(9)
    contents = st.one_of(
        st.binary(max_size=200),
        st.sampled_from(sorted(sound.values())),
        st.tuples(st.sampled_from(sorted(sound.values())), MUTATIONS, st.integers(0, 700)).map(
            lambda drawn: bytes(mutated(drawn[0], drawn[1])[: drawn[2]])
        ),
    )
    files = sound | data.draw(st.dictionaries(names, contents, max_size=5))

    async def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            engine = await recovered(Path(folder) / "logs", files)
            log = engine.logs[AT]
            found, _ = await read_around_damage(log)
            assert [record.offset for record in found] == sorted({record.offset for record in found})
            end = log.end_offset
            assert (await append_batch(log, memoryview(batch(b"next")), EPOCH)).base_offset == end
            await log.find_time(0)
            await log.find_max_timestamp()
            await engine.close()
            again = await open_engine(Path(folder) / "logs", CONFIG)
            after, _ = await read_around_damage(again.logs[AT])
            assert [record.value for record in after] == [record.value for record in found] + [b"next"]
            await again.close()

    asyncio.run(check())


@FUZZ
@given(st.binary(max_size=300))
def test_a_lying_length_takes_no_memory(tail: bytes) -> None:
    """A header that claims two gigabytes costs nothing."""
    liar = bytearray(batch(b"x")[:HEADER_BYTES] + tail)
    liar[8:12] = (0x7FFFFFFF).to_bytes(4, "big")
    tracemalloc.start()
    try:
        check_batch(memoryview(liar))
    except ApiError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 1_000_000
