"""The judge over histories is judged itself, with faults that were planted."""

from __future__ import annotations

from dataclasses import replace

from support.history import Assigned, Committing, Consumed, Event, History, faults


def good() -> History:
    """Two members; the second takes over partition 1 and reads again what the first had not committed."""
    produced = {(partition, offset): f"{partition}-{offset}" for partition in (0, 1) for offset in range(6)}
    events: list[Event] = [Assigned(0, "a", (0, 1))]
    events += [Consumed(10 + offset, "a", 0, offset, f"0-{offset}") for offset in range(6)]
    events += [Consumed(20 + offset, "a", 1, offset, f"1-{offset}") for offset in range(4)]
    events += [Committing(30, "a", 0, 6), Committing(31, "a", 1, 2)]
    events += [Assigned(40, "b", (1,))]
    events += [Consumed(50 + offset, "b", 1, offset, f"1-{offset}") for offset in range(2, 6)]
    events += [Committing(60, "b", 1, 6)]
    return History(produced, events)


def without(history: History, *events: Event) -> History:
    return History(history.produced, [event for event in history.events if event not in events])


def test_a_history_without_faults_is_found_good() -> None:
    assert faults(good(), committed={0: 6, 1: 6}) == []


def test_a_message_that_nobody_saw_is_found() -> None:
    history = without(good(), Consumed(15, "a", 0, 5, "0-5"), Committing(30, "a", 0, 6))
    assert faults(history) == ["skipped: 0@5 was never seen"]


def test_a_message_left_out_in_the_middle_is_found() -> None:
    history = without(good(), Consumed(12, "a", 0, 2, "0-2"))
    assert "gap: a went from 0@1 to 3" in faults(history)
    assert "skipped: 0@2 was never seen" in faults(history)


def test_a_changed_order_is_found() -> None:
    history = good()
    history.events = [
        replace(event, at_ns=event.at_ns + 1.5)  # type: ignore[arg-type]
        if event == Consumed(12, "a", 0, 2, "0-2")
        else event
        for event in history.events
    ]
    assert faults(history) == ["gap: a went from 0@1 to 3", "order: a saw 0@2 after 3", "gap: a went from 0@2 to 4"]


def test_going_back_without_a_rebalance_is_found() -> None:
    history = good()
    history.events.append(Consumed(70, "b", 1, 3, "1-3"))
    assert faults(history) == ["order: b saw 1@3 after 5"]


def test_a_gap_after_a_rebalance_is_found_even_if_the_message_is_seen_later() -> None:
    history = without(good(), *(Consumed(20 + offset, "a", 1, offset, f"1-{offset}") for offset in (2, 3)))
    history = without(history, Consumed(52, "b", 1, 2, "1-2"))
    history.events += [Assigned(80, "c", (1,)), Consumed(81, "c", 1, 2, "1-2")]
    assert "gap: b began 1 at 3, but only what is below 2 is done" in faults(history)


def test_a_commit_ahead_of_the_work_is_found() -> None:
    history = good()
    history.events.append(Committing(29, "a", 1, 5))
    assert faults(history) == ["ahead: a commits 1@5, done is 4"]


def test_a_committed_offset_ahead_of_the_work_is_found() -> None:
    assert faults(good(), committed={0: 7}) == ["ahead: the group has committed 0@7, done is 6"]


def test_a_message_that_is_not_what_was_sent_is_found() -> None:
    history = good()
    history.produced[0, 3] = "other"
    assert faults(history) == ["changed: a saw '0-3' at 0@3"]
