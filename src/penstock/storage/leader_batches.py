"""What a follower checks of the batches that its leader sent, before it takes them as they are.

Offsets and leader epochs are the leader's. Work is per batch: shape, CRC, and whether the offsets go on where the log
ends. Gaps are fine, the leader's log may be compacted; what overlaps the log is not, the two have parted.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.checksum import crc32c
from penstock.errors import ApiError, Code, StorageError
from penstock.records.batch import CRC_START, HEADER_BYTES, MAGIC, BatchHeader, read_header

Copy = tuple[BatchHeader, memoryview]


def copies_of(batches: memoryview, start_offset: int, end_offset: int) -> list[Copy]:
    """The batches that a log from `start_offset` to `end_offset` lacks, in order.

    Those that it has are left out, and so is a last one that is not whole. ApiError if one is damaged, StorageError if
    one does not fit; then nothing of them is to be appended.

    An empty log takes a batch that straddles its start: the leader's start may lie in the middle of a batch.
    """
    found: list[Copy] = []
    next_offset, position, size = end_offset, 0, len(batches)
    while size - position >= HEADER_BYTES:
        header = read_header(batches, position)
        if header.size < HEADER_BYTES or header.magic != MAGIC or header.last_offset_delta < 0:
            raise ApiError(Code.CORRUPT_MESSAGE, f"there is no batch at position {position} of what the leader sent")
        batch = batches[position : position + header.size]
        if len(batch) < header.size:
            break
        if crc32c(batch[CRC_START:]) != header.crc:
            raise ApiError(Code.CORRUPT_MESSAGE, f"the CRC of the batch at offset {header.base_offset} does not match")
        position += header.size
        if header.base_offset < next_offset:
            if not found and header.next_offset <= next_offset:
                continue
            if found or start_offset < end_offset:
                raise StorageError(
                    f"offsets {header.base_offset} to {header.last_offset} overlap the end of the log, {next_offset}"
                )
        found.append((header, batch))
        next_offset = header.next_offset
    return found


def sound_batches(batches: memoryview) -> Iterator[Copy]:
    """Batches up to the first that is not whole and sound."""
    position, size = 0, len(batches)
    while size - position >= HEADER_BYTES:
        header = read_header(batches, position)
        batch = batches[position : position + header.size]
        is_batch = header.size >= HEADER_BYTES and header.magic == MAGIC and header.last_offset_delta >= 0
        if not is_batch or len(batch) < header.size or crc32c(batch[CRC_START:]) != header.crc:
            return
        yield header, batch
        position += header.size
