"""The table of a lake: its columns, how they grow, and what is written down in it besides rows.

Rules:
- Columns are only ever added, with null in old rows. Nothing is dropped, renamed, or given another type.
- `(topic_id, partition, offset)` is unique: watermarks see to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.pipeline.failure import PipelineError
from penstock.pipeline.topics.columns import HEADERS, INSTANT, TEXTS

PARTITIONED_BY = ("topic", "date")

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("date", pa.date32()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("timestamp", INSTANT),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("tags", TEXTS),
        ("biz_id", pa.string()),
        ("due", INSTANT),
    ]
)
FILE_SCHEMA = pa.schema([field for field in SCHEMA if field.name not in PARTITIONED_BY])
"""Of a Parquet file: the columns that its folder's name does not tell."""

CLUSTER = "penstock.cluster"
"""Property of the table: the id of the cluster that it is the archive of."""

_DISTANCE_BITS = 31
_CRC_BITS = 32


def missing_columns(found: pa.Schema) -> list[pa.Field]:
    """Columns that a table lacks; one that is of another type is an error."""
    missing = []
    for field in SCHEMA:
        index = found.get_field_index(field.name)
        if index < 0:
            missing.append(field)
        elif not _is_same(found.field(index).type, field.type):
            raise PipelineError(
                f"column {field.name} of the lake is {found.field(index).type}, it would have to be {field.type}"
            )
    return missing


def offset_key(topic_id: str, partition: int) -> str:
    return f"penstock/offset/{topic_id}/{partition}"


def anchor_key(topic_id: str, partition: int) -> str:
    return f"penstock/last/{topic_id}/{partition}"


def archiver_key(name: str) -> str:
    return f"penstock/archiver/{name}"


@dataclass(frozen=True, slots=True)
class Anchor:
    """The last record that was archived: if the log still has that offset, it has that record there."""

    offset: int
    crc: int

    def packed(self, watermark: int) -> int:
        """As a number of 63 bits; 0 if it lies too far back to be told."""
        distance = watermark - self.offset
        assert distance > 0
        return distance << _CRC_BITS | self.crc if distance < 1 << _DISTANCE_BITS else 0


def unpacked(number: int | None, watermark: int) -> Anchor | None:
    """What `packed` made a number of."""
    if not number:
        return None
    return Anchor(watermark - (number >> _CRC_BITS), number & ((1 << _CRC_BITS) - 1))


def _is_same(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one are values of the other; whether a part may be null, and what it is called, aside."""
    if pa.types.is_list(wanted) or pa.types.is_large_list(wanted):
        return (pa.types.is_list(found) or pa.types.is_large_list(found)) and _is_same(
            found.value_type, wanted.value_type
        )
    if pa.types.is_struct(wanted):
        return (
            pa.types.is_struct(found)
            and [field.name for field in found] == [field.name for field in wanted]
            and all(_is_same(one.type, other.type) for one, other in zip(found, wanted, strict=True))
        )
    plain = {pa.large_string(): pa.string(), pa.string_view(): pa.string()}
    plain |= {pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary()}
    return bool(plain.get(found, found) == wanted)
