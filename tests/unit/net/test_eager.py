"""Work that is run at once, and becomes a task only if it waits."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

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


async def test_who_waits_for_work_that_waits_is_told_in_the_turn_in_which_it_ends() -> None:
    loop, seen = asyncio.get_running_loop(), list[str]()
    gate: asyncio.Future[int] = loop.create_future()

    async def work() -> str:
        await gate
        loop.call_soon(seen.append, "the next turn")
        return "result"

    task = eager.start(loop, work(), seen.append)
    assert isinstance(task, asyncio.Task)
    gate.set_result(1)
    await task
    assert seen == ["result", "the next turn"]


async def test_who_waits_for_work_is_not_told_of_a_result_that_it_is_given_at_once_or_that_never_comes() -> None:
    loop, seen = asyncio.get_running_loop(), list[int]()

    async def at_once() -> int:
        return 1

    async def fails() -> int:
        await asyncio.sleep(0)
        raise ValueError

    assert eager.start(loop, at_once(), seen.append) == 1
    task = eager.start(loop, fails(), seen.append)
    assert isinstance(task, asyncio.Task)
    with pytest.raises(ValueError):
        await task
    assert seen == []


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


async def test_cancelling_the_task_before_its_first_step_cancels_the_work_too() -> None:
    """A connection may be closed in the turn of the loop in which its request began to wait."""
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0)
            seen.append("cleaned up")
            raise

    task = eager.start(asyncio.get_running_loop(), work())
    assert isinstance(task, asyncio.Task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled", "cleaned up"]


async def test_work_that_handles_its_cancellation_goes_on_and_returns() -> None:
    async def work() -> list[str]:
        seen = []
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
        return [*seen, await asyncio.sleep(0, "done")]

    task = eager.start(asyncio.get_running_loop(), work())
    assert isinstance(task, asyncio.Task)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    assert await task == ["cancelled", "cancelled", "done"]


async def test_an_error_of_what_the_work_waits_for_reaches_the_work() -> None:
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await gate
        except ValueError as error:
            return f"caught: {error}"
        return "not caught"

    task = eager.start(asyncio.get_running_loop(), work())
    assert isinstance(task, asyncio.Task)
    gate.set_exception(ValueError("late"))
    assert await task == "caught: late"


def test_work_on_the_loop_of_the_broker() -> None:
    """The broker runs on uvloop, whose loop makes the tasks."""

    async def work(gate: asyncio.Future[int]) -> int:
        async with asyncio.Lock():
            return await gate + await asyncio.sleep(0, 1)

    async def main() -> int:
        loop = asyncio.get_running_loop()
        gate: asyncio.Future[int] = loop.create_future()
        task = eager.start(loop, work(gate))
        assert isinstance(task, asyncio.Task)
        gate.set_result(1)
        return await task

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == 2
