"""What reports need to know of each record: sizes and headers instead of contents.

Records are read once for all reports. Header values are looked up as Kafka's clients do: the last of a name counts.
Text from headers is made valid UTF-8, whatever the sender wrote there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from penstock.sdk.headers import ATTEMPT, CORRELATION, ERROR, ORIGIN, REPLY_TO, SETTLED
from penstock.sdk.topic_names import DEAD, RETRY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

READ = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "biz_id", "due")
"""The columns of records that facts are made of."""

UNKNOWN = "unknown"
SENDER_HEADERS = ("penstock-sender", "ce_source")
"""Headers that name who has sent a record; the second is that of CloudEvents."""

_KEY_CHARS = 64
_TEXT_CHARS = 300


def facts_of(
    records: DataFrame, until: datetime | None = None, sender_headers: Sequence[str] = SENDER_HEADERS
) -> DataFrame:
    """One row for each record; `until` is where the window ends that the reports are about."""
    in_window = F.lit(True) if until is None else F.coalesce(F.col("timestamp") < F.lit(until), F.lit(False))
    senders = [_text(_header(name)) for name in sender_headers]
    header_bytes = F.expr(
        "aggregate(headers, 0L, (sum, h) -> sum + octet_length(h.key) + coalesce(octet_length(h.value), 0))"
    )
    return records.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "biz_id",
        "due",
        F.coalesce(*senders, F.lit(UNKNOWN)).alias("producer"),
        _text(F.substring("key", 1, _KEY_CHARS)).alias("key"),
        F.xxhash64("key").alias("key_hash"),
        _size("key").alias("key_bytes"),
        _size("value").alias("value_bytes"),
        F.col("value").isNull().alias("is_tombstone"),
        F.coalesce(header_bytes, F.lit(0)).alias("header_bytes"),
        _text(_header(ATTEMPT)).try_cast("int").alias("attempt"),
        _text(_header(ORIGIN)).alias("origin"),
        F.substring(_text(_header(ERROR)), 1, _TEXT_CHARS).alias("error"),
        _text(_header(SETTLED)).alias("settled"),
        F.base64(_header(CORRELATION)).alias("correlation"),
        _header(REPLY_TO).isNotNull().alias("wants_reply"),
        in_window.alias("in_window"),
    )


def is_retry() -> Column:
    """Whether a record's topic is one that a group keeps its retries or its dead letters in."""
    return F.col("topic").endswith(RETRY) | F.col("topic").endswith(DEAD)


def origin_topic() -> Column:
    """Where a retry or dead letter was first; null if it does not say."""
    return F.substring_index("origin", "/", 1)


def total_bytes() -> Column:
    return F.col("key_bytes") + F.col("value_bytes") + F.col("header_bytes")


def milliseconds(later: Column, earlier: Column) -> Column:
    """From one time to another; negative if it is the other way round."""
    return F.unix_millis(later) - F.unix_millis(earlier)


def percentiles(of: Column, prefix: str = "", unit: str = "") -> list[Column]:
    """The middle, the slow tenth, the slow hundredth and the worst; approximate, to about one in ten thousand."""
    return [
        *(
            F.percentile_approx(of, share, 10_000).alias(f"{prefix}p{round(share * 100)}{unit}")
            for share in (0.5, 0.9, 0.99)
        ),
        F.max(of).alias(f"{prefix}max{unit}"),
    ]


def _header(name: str) -> Column:
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    return F.expr(f"try_element_at(filter(headers, h -> h.key = '{quoted}'), -1).value")


def _text(binary: Column) -> Column:
    return F.make_valid_utf8(binary.cast("string"))


def _size(name: str) -> Column:
    return F.coalesce(F.octet_length(name), F.lit(0)).cast("long")
