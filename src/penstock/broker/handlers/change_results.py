"""The results of a change of metadata, by item: also when the change could not be committed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Mapping
from typing import TypeVar

from penstock.errors import ApiError, Code, CoordinationError
from penstock.logs import fields

log = logging.getLogger(__name__)

K = TypeVar("K")
R = TypeVar("R")


async def results_or_failure(
    committing: Awaitable[Mapping[K, R | ApiError]], items: Iterable[K]
) -> Mapping[K, R | ApiError]:
    """The results, or the same failure for each item: a commit is all or nothing."""
    try:
        return await committing
    except CoordinationError as error:
        return dict.fromkeys(items, not_written(error))


def not_written(error: CoordinationError) -> ApiError:
    """What the client is told; the reason is logged, and no more: a cluster may be without its tree for a while."""
    log.warning("cannot commit a metadata change", extra=fields(reason=str(error)))
    return ApiError(Code.UNKNOWN_SERVER_ERROR, f"The change could not be written: {error}")


def duplicates(names: Iterable[K]) -> set[K]:
    """What is named more than once."""
    seen: set[K] = set()
    repeated: set[K] = set()
    for name in names:
        (repeated if name in seen else seen).add(name)
    return repeated
