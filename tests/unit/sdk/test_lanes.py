"""Who is next."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk.receive.lanes import Lanes


def filled(*items: str) -> Lanes[str]:
    """The lane of an item is its first letter; those that begin with a dash have none."""
    lanes: Lanes[str] = Lanes()
    for item in items:
        lanes.add(lane_of(item), item)
    return lanes


def lane_of(item: str) -> str | None:
    return None if item[0] == "-" else item[0]


def test_without_a_lane_nobody_waits_for_anybody() -> None:
    assert filled("-1", "-2", "-3").take(10) == ["-1", "-2", "-3"]


def test_of_a_lane_only_the_first_can_be_taken() -> None:
    lanes = filled("a1", "a2", "b1", "a3")
    assert lanes.take(10) == ["a1", "b1"]
    assert lanes.take(10) == []
    lanes.through("a")
    assert lanes.take(10) == ["a2"]


def test_one_that_comes_again_holds_up_its_lane_only() -> None:
    lanes = filled("a1", "a2", "b1")
    assert lanes.take(2) == ["a1", "b1"]
    lanes.again("a", "a1", due_ms=1000)
    lanes.through("b")
    lanes.add("b", "b2")
    assert lanes.take(10) == ["b2"]
    lanes.wake(999)
    assert lanes.take(10) == []
    assert lanes.next_due_ms() == 1000
    lanes.wake(1000)
    assert lanes.take(10) == ["a1"]
    lanes.through("a")
    assert lanes.take(10) == ["a2"]


def test_what_waits_and_is_unwanted_is_dropped_from_all_lanes() -> None:
    lanes = filled("a1", "a2!", "b1!", "b2", "-3!", "-4")
    assert sorted(lanes.drop(lambda item: item.endswith("!"))) == ["-3!", "a2!", "b1!"]
    assert sorted(lanes.take(10)) == ["-4", "a1", "b2"]
    lanes.through("a")
    lanes.through("b")
    assert lanes.take(10) == []


def test_what_was_taken_is_not_dropped_and_its_lane_goes_on() -> None:
    lanes = filled("a1!", "a2!", "a3")
    assert lanes.take(1) == ["a1!"]
    assert lanes.drop(lambda item: item.endswith("!")) == ["a2!"]
    assert lanes.take(10) == []
    lanes.through("a")
    assert lanes.take(10) == ["a3"]


def test_one_that_waits_to_come_again_is_dropped_too() -> None:
    lanes = filled("a1!", "a2")
    lanes.take(1)
    lanes.again("a", "a1!", due_ms=10)
    assert lanes.drop(lambda item: item.endswith("!")) == ["a1!"]
    lanes.wake(100)
    assert lanes.take(10) == ["a2"]


@given(st.lists(st.sampled_from("abcd-"), max_size=40), st.randoms(use_true_random=False))
def test_every_item_is_through_once_and_those_of_a_lane_in_order(lanes_of: list[str], chance: random.Random) -> None:
    items = [f"{lane}{number}" for number, lane in enumerate(lanes_of)]
    lanes, now_ms = filled(*items), 0.0
    out: list[str] = []
    through: list[str] = []
    while len(through) < len(items):
        now_ms += 1
        lanes.wake(now_ms)
        out += lanes.take(chance.randint(0, 3))
        lanes_out = [lane_of(item) for item in out if lane_of(item)]
        assert len(lanes_out) == len(set(lanes_out))
        if out:
            item = out.pop(chance.randrange(len(out)))
            if chance.random() < 0.3:
                lanes.again(lane_of(item), item, now_ms + chance.randint(0, 5))
            else:
                lanes.through(lane_of(item))
                through.append(item)
    assert sorted(through) == sorted(items)
    for lane in "abcd":
        assert [item for item in through if item[0] == lane] == [item for item in items if item[0] == lane]
