"""Parameters that many routes share, with their bounds."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query

from penstock.console.operations.paging import MAX_LIMIT, RowQuery

MAX_OFFSET = 2**63 - 1
MAX_TIME_MS = 2**53
MAX_PARTITION = 2**31 - 1
_NAME_PATTERN = r"^[^\x00-\x1f\x7f]+$"

ClusterName = Annotated[str, Path(max_length=64, pattern=_NAME_PATTERN)]
TopicName = Annotated[str, Path(max_length=249, pattern=r"^[A-Za-z0-9._-]+$")]
GroupName = Annotated[str, Path(max_length=255, pattern=_NAME_PATTERN)]
Id = Annotated[str, Path(max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
PartitionIndex = Annotated[int, Path(ge=0, le=MAX_PARTITION)]
Offset = Annotated[int, Path(ge=0, le=MAX_OFFSET)]


def _rows(
    first: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    sort: Annotated[str, Query(max_length=50)] = "",
    descending: bool = False,
    text: Annotated[str, Query(max_length=200)] = "",
) -> RowQuery:
    return RowQuery(first=first, limit=limit, sort=sort, is_descending=descending, text=text)


Rows = Annotated[RowQuery, Depends(_rows)]
