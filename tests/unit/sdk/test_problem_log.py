"""How the SDK logs what goes wrong: lasting troubles once a minute, errors of one kind with one traceback."""

from __future__ import annotations

import logging
import traceback

import pytest

from penstock.clock import ManualClock
from penstock.sdk.message import Message
from penstock.sdk.problem_log import EVERY_MS, OngoingProblem, SeenErrors, error_line, traceback_of
from support.subscription_story import Story

log = logging.getLogger("penstock.test")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def problem(clock: ManualClock) -> OngoingProblem:
    return OngoingProblem(log, "no answer", "answers again", clock=clock)


def test_a_lasting_trouble_is_one_line_a_minute_and_one_when_it_is_over(
    problem: OngoingProblem, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(150):
        problem.report(f"refused {second}")
        clock.advance(1000)
    problem.end()
    problem.end()
    assert caplog.messages == [
        "no answer: refused 0",
        "no answer, since 22:13:20 UTC (60 s): refused 60",
        "no answer, since 22:13:20 UTC (2 min): refused 120",
        "answers again, after 2 min",
    ]


def test_a_trouble_that_comes_back_is_a_new_one(problem: OngoingProblem, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        problem.report("refused")
        assert problem.is_on
        problem.end()
        assert not problem.is_on
    assert caplog.messages == ["no answer: refused", "answers again, after 0 s"] * 2


def test_what_a_larger_trouble_covers_is_logged_only_if_it_outlasts_it(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    covered = [True]
    problem = OngoingProblem(log, "cannot start", "has started", clock=clock, is_explained=lambda: covered[0])
    problem.report("no broker")
    clock.advance(2 * EVERY_MS)
    problem.report("no broker")
    problem.end()
    assert caplog.messages == []
    problem.report("no broker")
    covered[0] = False
    problem.report("not allowed")
    assert caplog.messages == ["cannot start: not allowed"]


def _raised(text: str) -> Exception:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_errors_of_one_type_from_one_place_are_of_one_kind() -> None:
    kinds = SeenErrors()
    assert [kinds.is_new(_raised(text)) for text in ("one", "two")] == [True, False]
    assert kinds.is_new(TypeError("from nowhere"))
    assert not kinds.is_new(TypeError("from nowhere again"))
    try:
        raise ValueError("from another place")
    except ValueError as error:
        assert kinds.is_new(error)


def test_a_traceback_has_the_frames_of_the_application_and_none_of_the_sdk(caplog: pytest.LogCaptureFixture) -> None:
    def look_up(message: Message) -> None:
        raise KeyError(message.value)

    def handler(message: Message) -> None:
        look_up(message)

    story = Story(handler)
    story.comes(b"colour")
    story.play()
    (record,) = caplog.records
    assert record.exc_info is not None
    assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])] == ["handler", "look_up"]
    assert traceback_of(TypeError("never raised"))[2] is None


def test_an_error_is_one_line() -> None:
    assert error_line(ValueError("one\n  two")) == "ValueError: one two"
    assert error_line(ValueError()) == "ValueError"
