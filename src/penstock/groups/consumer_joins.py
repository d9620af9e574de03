"""Members of a consumer group (KIP-848) that join at the same time are let in together.

When an application starts, all of its members join within milliseconds. One after the other, each would begin an epoch
with a plan of its own, and what the first members are given would be revoked again and again. So all members that ask
in the same turn of the event loop, or while the group is writing, join in one event: one epoch, one plan, one batch of
records. The group does not wait for members that may come later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from penstock.errors import ApiError
from penstock.groups.consumer.events import ConsumerHeartbeat, HeartbeatAnswer

_AT_ONCE = 200
"""Members that are let in together, at most: others have their turn in between."""

Take = Callable[[], list[ConsumerHeartbeat]]
"""Returns the members that wait when it is called."""
LetIn = Callable[[str, Take], Awaitable[list[HeartbeatAnswer | ApiError]]]
Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class _Waiting(NamedTuple):
    event: ConsumerHeartbeat
    answer: asyncio.Future[HeartbeatAnswer]


class ConsumerJoins:
    """Members that wait to join, by group."""

    def __init__(self, let_in: LetIn, spawn: Spawn) -> None:
        """`let_in` is called with the name of a group, and takes the waiting members when it is the group's turn."""
        self._let_in = let_in
        self._spawn = spawn
        self._waiting: dict[str, deque[_Waiting]] = {}

    async def join(self, group_id: str, event: ConsumerHeartbeat) -> HeartbeatAnswer:
        """Raises ApiError if the member is refused."""
        answer: asyncio.Future[HeartbeatAnswer] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(group_id)
        if waiting is None:
            waiting = self._waiting[group_id] = deque()
            self._spawn(self._let_all_in(group_id, waiting), f"joins of {group_id}")
        waiting.append(_Waiting(event, answer))
        return await answer

    async def _let_all_in(self, group_id: str, waiting: deque[_Waiting]) -> None:
        await asyncio.sleep(0)
        try:
            while waiting:
                await self._let_some_in(group_id, waiting)
        finally:
            del self._waiting[group_id]
            for each in waiting:
                each.answer.cancel()

    async def _let_some_in(self, group_id: str, waiting: deque[_Waiting]) -> None:
        taken: list[_Waiting] = []

        def take() -> list[ConsumerHeartbeat]:
            while waiting and len(taken) < _AT_ONCE:
                taken.append(waiting.popleft())
            return [each.event for each in taken]

        try:
            answers = await self._let_in(group_id, take)
        except ApiError as error:
            if not taken:
                take()
            answers = [error] * len(taken)
        except BaseException:
            for each in taken:
                each.answer.cancel()
            raise
        for each, answer in zip(taken, answers, strict=True):
            if each.answer.done():
                continue  # its client has gone
            if isinstance(answer, ApiError):
                each.answer.set_exception(answer)
            else:
                each.answer.set_result(answer)
