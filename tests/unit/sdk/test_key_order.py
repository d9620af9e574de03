"""Messages of one key are taken one after the other."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk.receive.key_order import KeyOrderedQueue


def filled(*items: str) -> KeyOrderedQueue[str]:
    """The key of an item is its first letter; items that begin with a dash have none."""
    queue: KeyOrderedQueue[str] = KeyOrderedQueue()
    for item in items:
        queue.add(key_of(item), item)
    return queue


def key_of(item: str) -> str | None:
    return None if item[0] == "-" else item[0]


def test_items_without_a_key_do_not_wait_for_each_other() -> None:
    assert filled("-1", "-2", "-3").take(10) == ["-1", "-2", "-3"]


def test_only_the_first_item_of_a_key_can_be_taken() -> None:
    queue = filled("a1", "a2", "b1", "a3")
    assert queue.take(10) == ["a1", "b1"]
    assert queue.take(10) == []
    queue.finish("a")
    assert queue.take(10) == ["a2"]


def test_a_retried_item_holds_up_its_key_only() -> None:
    queue = filled("a1", "a2", "b1")
    assert queue.take(2) == ["a1", "b1"]
    queue.retry_at("a", "a1", due_ms=1000)
    queue.finish("b")
    queue.add("b", "b2")
    assert queue.take(10) == ["b2"]
    queue.release_due(999)
    assert queue.take(10) == []
    assert queue.next_due_ms() == 1000
    queue.release_due(1000)
    assert queue.take(10) == ["a1"]
    queue.finish("a")
    assert queue.take(10) == ["a2"]


def test_unwanted_waiting_items_are_dropped_from_all_keys() -> None:
    queue = filled("a1", "a2!", "b1!", "b2", "-3!", "-4")
    assert sorted(queue.drop(lambda item: item.endswith("!"))) == ["-3!", "a2!", "b1!"]
    assert sorted(queue.take(10)) == ["-4", "a1", "b2"]
    queue.finish("a")
    queue.finish("b")
    assert queue.take(10) == []


def test_a_taken_item_is_not_dropped_and_its_key_continues() -> None:
    queue = filled("a1!", "a2!", "a3")
    assert queue.take(1) == ["a1!"]
    assert queue.drop(lambda item: item.endswith("!")) == ["a2!"]
    assert queue.take(10) == []
    queue.finish("a")
    assert queue.take(10) == ["a3"]


def test_an_item_that_waits_for_its_retry_is_dropped_too() -> None:
    queue = filled("a1!", "a2")
    queue.take(1)
    queue.retry_at("a", "a1!", due_ms=10)
    assert queue.drop(lambda item: item.endswith("!")) == ["a1!"]
    queue.release_due(100)
    assert queue.take(10) == ["a2"]


@given(st.lists(st.sampled_from("abcd-"), max_size=40), st.randoms(use_true_random=False))
def test_every_item_is_finished_once_and_those_of_a_key_in_order(keys: list[str], chance: random.Random) -> None:
    items = [f"{key}{number}" for number, key in enumerate(keys)]
    queue, now_ms = filled(*items), 0.0
    out: list[str] = []
    finished: list[str] = []
    while len(finished) < len(items):
        now_ms += 1
        queue.release_due(now_ms)
        out += queue.take(chance.randint(0, 3))
        keys_out = [key_of(item) for item in out if key_of(item)]
        assert len(keys_out) == len(set(keys_out))
        if out:
            item = out.pop(chance.randrange(len(out)))
            if chance.random() < 0.3:
                queue.retry_at(key_of(item), item, now_ms + chance.randint(0, 5))
            else:
                queue.finish(key_of(item))
                finished.append(item)
    assert sorted(finished) == sorted(items)
    for key in "abcd":
        assert [item for item in finished if item[0] == key] == [item for item in items if item[0] == key]
