"""The results of a change of metadata, by item: also when the change could not be committed, or the time of the request
is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from typing import TypeVar

from penstock.errors import ApiError, Code, CoordinationError
from penstock.logs import fields

log = logging.getLogger(__name__)

K = TypeVar("K")
R = TypeVar("R")

TIMED_OUT = ApiError(
    Code.REQUEST_TIMED_OUT,
    "The change was made, and the broker is still carrying it out: do not send it again, look at the topic later.",
)


def deadline_of(timeout_ms: int) -> float:
    """When the time of a request is over that begins now, as a time of the event loop."""
    return asyncio.get_running_loop().time() + max(0, timeout_ms) / 1000


async def results_or_failure(
    committing: Awaitable[Mapping[K, R | ApiError]], items: Iterable[K]
) -> Mapping[K, R | ApiError]:
    """The results, or the same failure for each item: a commit is all or nothing."""
    try:
        return await committing
    except CoordinationError as error:
        return dict.fromkeys(items, not_written(error))


def not_written(error: CoordinationError) -> ApiError:
    """The error for the client. Logs the reason without a traceback: a cluster may be without its tree for a while."""
    log.warning("cannot commit a metadata change", extra=fields(reason=str(error)))
    return ApiError(Code.UNKNOWN_SERVER_ERROR, f"The change could not be written: {error}")


def duplicates(names: Iterable[K]) -> set[K]:
    """What is named more than once."""
    seen: set[K] = set()
    repeated: set[K] = set()
    for name in names:
        (repeated if name in seen else seen).add(name)
    return repeated
