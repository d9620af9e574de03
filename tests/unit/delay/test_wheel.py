"""What is due soon, compared with a list that is sorted anew every time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.delay.entries import RECURS, Entry, at_due, cancelled, delayed_to, due_of, is_cancel, pack, recurs, unpack
from penstock.delay.wheel import Wheel

dues = st.integers(0, 5000)
# At one place there is one message, which recurs or does not.
entries = st.builds(
    lambda due, base, position: pack(due, base, position, 100 | (RECURS if (due + base + position) % 2 else 0), 7),
    dues,
    st.integers(0, 3),
    st.integers(0, 3),
)


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_an_entry_is_what_was_packed(due: int, base: int, position: int, crc: int) -> None:
    entry = pack(due, base, position, RECURS | 55, crc)
    assert unpack(entry) == Entry(due, base, position, 55, True, False, crc)
    assert recurs(entry) and not is_cancel(entry) and is_cancel(cancelled(entry))
    assert cancelled(entry) < entry and at_due(due) <= entry
    assert due_of(delayed_to(entry, 5)) == 5 and unpack(delayed_to(entry, 5))[1:] == unpack(entry)[1:]


@given(st.lists(entries), st.lists(entries))
def test_entries_come_in_order_and_once_however_they_were_added(one: list[bytes], many: list[bytes]) -> None:
    wheel = Wheel()
    for entry in one:
        wheel.add(entry)
    wheel.add_sorted(memoryview(b"".join(sorted(many))))
    assert wheel.take(10_000, 10_000) == sorted({*one, *many})
    assert len(wheel) == 0 and wheel.next_due() is None


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), entries),
            st.tuples(st.just("cancel"), st.integers(0, 30)),
            st.tuples(st.just("take"), dues),
            st.tuples(st.just("pass"), st.integers(0, 30)),
        ),
        max_size=60,
    )
)
def test_the_wheel_gives_what_a_sorted_list_would(steps: list[tuple[str, object]]) -> None:
    wheel, waiting, known = Wheel(), set[bytes](), list[bytes]()
    mark, recurring = bytes(24), list[bytes]()
    for step, what in steps:
        if step == "add":
            assert isinstance(what, bytes)
            wheel.add(what)
            if what > mark and cancelled(what) not in waiting:
                waiting.add(what)
            known.append(what)
        elif step == "cancel" and known:
            assert isinstance(what, int)
            entry = known[what % len(known)]
            if entry > mark and cancelled(entry) > mark:
                wheel.add(cancelled(entry))
                waiting = {other for other in waiting if other[:16] != entry[:16]} | {cancelled(entry)}
        elif step == "take":
            assert isinstance(what, int)
            due = sorted(entry for entry in waiting if due_of(entry) <= what)
            expected = [entry for entry in due if not is_cancel(entry)][:5]
            assert wheel.take(what, 5) == expected
            # It may have passed messages that were cancelled.
            assert not expected or wheel.mark >= expected[-1]
            mark = wheel.mark
            recurring += [entry for entry in expected if recurs(entry)]
            waiting = {entry for entry in waiting if entry > mark}
        elif step == "pass" and known:
            assert isinstance(what, int)
            to = known[what % len(known)]
            gone = sorted(entry for entry in waiting if entry <= to)
            recurring += [entry for entry in gone if recurs(entry) and not is_cancel(entry)]
            mark = max(mark, to)
            assert wheel.passed(to).recurring == [entry for entry in recurring if entry <= to]
            recurring = [entry for entry in recurring if entry > to]
            waiting = {entry for entry in waiting if entry > mark}
        left = sorted(waiting)
        assert wheel.next_due() == (due_of(left[0]) if left else None)


def test_the_oldest_is_what_was_not_passed_yet_taken_or_not() -> None:
    wheel = Wheel()
    assert wheel.oldest_due() is None
    first, second = pack(1500, 0, 0, 100, 7), pack(4200, 0, 1, 100, 7)
    wheel.add(first)
    wheel.add(second)
    # What lies in a slot is known to the second, and looking changes nothing.
    assert wheel.oldest_due() == 1000 and len(wheel) == 2
    assert wheel.take(2000, 10) == [first]
    # Taken is not delivered: that is so when it is passed.
    assert wheel.oldest_due() == 1500
    wheel.passed(first)
    assert wheel.next_due() == wheel.oldest_due() == 4200
