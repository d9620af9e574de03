"""Records with tags, and views of logs as consumers see them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from penstock.config.view import parse_tags
from penstock.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, read_header
from penstock.records.compression import Codec
from penstock.records.records import Record, build_batch
from penstock.replication.partition import Partition
from penstock.storage.contract import Log, Slice
from penstock.views.search import Effort, Search
from penstock.views.tag_matcher import Matcher
from support.logs import ALL, EPOCH, NOW_MS, append_batch, content, seen, split

TAGS = "penstock-tags"


def tagged(value: bytes, *tags: str, key: bytes | None = None) -> Record:
    headers = ((TAGS, ",".join(tags).encode()),) if tags else ()
    return Record(key, value, headers, NOW_MS)


def tagged_batch(records: Sequence[Record], codec: Codec = Codec.NONE, producer: int = -1) -> bytearray:
    if producer < 0:
        return build_batch(records, codec=codec)
    return build_batch(
        records, codec=codec, producer_id=producer, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT
    )


async def append_tagged(log: Log, *records: Record, codec: Codec = Codec.NONE, epoch: int = EPOCH) -> int:
    """Appends one batch and gives its base offset."""
    return (await append_batch(log, memoryview(tagged_batch(records, codec)), epoch)).base_offset


class Viewer:
    """A consumer of a view: fetches until it is at the end, and goes on behind what each answer says."""

    def __init__(self, expression: str, *, committed_only: bool = False, max_bytes: int = ALL) -> None:
        self._matcher = Matcher(parse_tags(expression))
        self._committed_only = committed_only
        self._max_bytes = max_bytes
        self.effort = Effort()
        self.fetches = 0

    async def offsets(self, partition: Partition, start: int | None = None) -> list[int]:
        """The offsets of all records that are shown, from `start` on."""
        first = position = partition.log.start_offset if start is None else start
        end = partition.last_stable_offset if self._committed_only else partition.high_watermark
        found: list[int] = []
        with ThreadPoolExecutor(1) as pool:
            while position < end:
                batches = await self._fetch(partition, position, pool)
                assert batches, f"a fetch at {position} of {end} gave nothing, not even where to go on"
                for each in batches:
                    header = read_header(each)
                    if not header.attributes & CONTROL_BIT:
                        found += [record.offset for record in seen(each) if record.offset >= position]
                    assert header.next_offset > position
                    position = header.next_offset
                self.fetches += 1
        return [offset for offset in found if offset >= first]

    async def read_once(self, partition: Partition, offset: int) -> list[bytes]:
        """The batches of one answer."""
        with ThreadPoolExecutor(1) as pool:
            return await self._fetch(partition, offset, pool)

    async def _fetch(self, partition: Partition, offset: int, pool: ThreadPoolExecutor) -> list[bytes]:
        search = Search(partition, self._matcher, offset, pool, self.effort, committed_only=self._committed_only)
        await search.advance(self._max_bytes, is_first=True)
        return split(content(Slice(*search.shown_with_waymark())))
