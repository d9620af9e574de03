"""What metadata images ask for, done in order.

Images are applied one after the other. An update of a topic comes after the earlier updates of that topic, and beside
those of other topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable

from penstock.logs import fields

logger = logging.getLogger(__name__)

Step = Callable[[], Awaitable[None]]


class _Updates:
    """The updates of one topic that are not done yet; `last` is done when all of them are."""

    __slots__ = ("last", "steps")

    def __init__(self) -> None:
        self.steps: deque[tuple[Step, asyncio.Future[None]]] = deque()
        self.last: asyncio.Future[None] | None = None


class TopicUpdates:
    """Those of one broker."""

    def __init__(self) -> None:
        self._images: deque[Step] = deque()
        self._taken = 0
        self._done = 0
        """How many of the images that were taken are applied, except for the updates of topics that they led to."""
        self._task: asyncio.Task[None] | None = None
        self._topics: dict[str, _Updates] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def are_done(self) -> bool:
        return self._task is None and not self._topics

    def apply(self, image: Step) -> None:
        """Apply an image after all that were taken before."""
        self._images.append(image)
        self._taken += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._apply_all(), name="apply metadata")

    def has(self, topic: str) -> bool:
        """Whether an update of the topic is not done yet."""
        return topic in self._topics

    def update(self, topic: str, step: Step) -> None:
        """Update a topic after all of its updates that were taken before."""
        updates = self._topics.get(topic)
        if updates is None:
            updates = self._topics[topic] = _Updates()
            task = asyncio.get_running_loop().create_task(
                self._update_all(topic, updates), name=f"apply metadata of {topic}"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        updates.last = asyncio.get_running_loop().create_future()
        updates.steps.append((step, updates.last))

    async def wait(self, topics: Iterable[str] | None = None, deadline: float | None = None) -> set[str]:
        """Returns when every image so far has been applied, as far as it is about these topics; by default, all. A
        `deadline`, a time of the event loop, ends the wait early. Gives the topics that are not applied by then.
        """
        names, taken = None if topics is None else set(topics), self._taken
        while self._done < taken and self._task is not None:
            if not await _ended([self._task], deadline):
                return set(self._topics) if names is None else names
        found = set(self._topics) if names is None else names & self._topics.keys()
        lasts = {name: last for name in found if (last := self._topics[name].last) is not None}
        await _ended(lasts.values(), deadline)
        return {name for name, last in lasts.items() if not last.done()}

    async def _apply_all(self) -> None:
        try:
            while self._images:
                image = self._images.popleft()
                try:
                    await image()
                except Exception:
                    # The next image is applied all the same, and tasks that wait for this one go on.
                    logger.exception("could not apply metadata")
                self._done += 1
        finally:
            self._task = None

    async def _update_all(self, topic: str, updates: _Updates) -> None:
        try:
            while updates.steps:
                step, done = updates.steps.popleft()
                try:
                    await step()
                except Exception:
                    # The next image of the topic is applied all the same, and tasks that wait for this one go on.
                    logger.exception("could not apply the metadata of a topic", extra=fields(topic=topic))
                finally:
                    done.set_result(None)
        finally:
            del self._topics[topic]


async def _ended(futures: Collection[asyncio.Future[None]], deadline: float | None) -> bool:
    """Waits until all of them are done, or until a time of the event loop; whether they are."""
    if not futures:
        return True
    timeout_s = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
    _, pending = await asyncio.wait(futures, timeout=timeout_s)
    return not pending
