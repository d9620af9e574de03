"""Work that is run at once, and becomes a task only if it waits."""

from __future__ import annotations

import asyncio

import pytest

from penstock.net import eager


async def test_work_that_never_waits_gives_its_result_without_a_task() -> None:
    async def work() -> int:
        return 7

    assert eager.start(asyncio.get_running_loop(), work()) == 7


async def test_work_that_waits_goes_on_as_a_task() -> None:
    steps: list[str] = []
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        steps.append("begun")
        first = await gate
        await asyncio.sleep(0)
        steps.append("done")
        return first + 1

    task = eager.start(asyncio.get_running_loop(), work())
    assert isinstance(task, asyncio.Task)
    assert steps == ["begun"]
    gate.set_result(1)
    assert await task == 2
    assert steps == ["begun", "done"]


async def test_an_error_reaches_the_caller_before_and_after_the_first_wait() -> None:
    async def at_once() -> None:
        raise ValueError("at once")

    async def later() -> None:
        await asyncio.sleep(0)
        raise ValueError("later")

    loop = asyncio.get_running_loop()
    with pytest.raises(ValueError, match="at once"):
        eager.start(loop, at_once())
    task = eager.start(loop, later())
    assert isinstance(task, asyncio.Task)
    with pytest.raises(ValueError, match="later"):
        await task


async def test_cancelling_the_task_cancels_the_work() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = eager.start(asyncio.get_running_loop(), work())
    assert isinstance(task, asyncio.Task)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
