"""What messages of the intake topic ask for, where they are stored, and what is refused."""

from __future__ import annotations

import pytest

from penstock.bridge.forwarded_message import headers_as_text, headers_from_text, refused_forward, with_due_time
from penstock.bridge.intake_message import RUN, Cancel, IntakeRules, Waiting, entry_of, shard_of
from penstock.bridge.prefixed_headers import renamed
from penstock.bridge.progress import RowKey, decode_progress, encode_progress
from penstock.sdk.errors import TopicError
from penstock.sdk.headers import error_text
from penstock.sdk.hooks.delay_bridge import DelayBridge
from penstock.sdk.ports import Headers, Outgoing, Received
from penstock.sdk.send.outgoing_message import compose, compose_cancel

SENT = 1_700_000_000_000
NOW = SENT + 100
RULES = IntakeRules(dead_topic="bridge.dead")


def received(*headers: tuple[str, bytes | None], topic: str = "delays", offset: int = 7) -> Received:
    return Received(topic, 1, offset, b"value", b"key", tuple(headers), SENT)


def waiting(message: Received, rules: IntakeRules = RULES) -> Waiting:
    entry = entry_of(message, rules, NOW)
    assert isinstance(entry, Waiting)
    return entry


def reason(message: Received, rules: IntakeRules = RULES) -> str:
    entry = waiting(message, rules)
    assert (entry.topic, entry.deliver_at_ms) == ("bridge.dead", None)
    headers = dict(entry.headers)
    assert headers["penstock-origin"] == f"delays/1/7/{SENT}".encode()
    assert not headers.keys() & {"penstock-delay", "penstock-deliver-at", "penstock-schedule"}
    return (headers["penstock-error"] or b"").decode()


def test_a_delay_counts_from_the_timestamp_of_the_message() -> None:
    entry = waiting(received(("penstock-delay", b"5s"), ("penstock-target", b"orders"), ("mine", b"\xff")))
    assert (entry.topic, entry.partition, entry.deliver_at_ms) == ("orders", None, SENT + 5000)
    assert entry.headers == (("mine", b"\xff"), ("penstock-bridge-origin", b"delays/1/7"))
    assert with_due_time(entry.headers, entry.deliver_at_ms)[-1] == ("penstock-deliver-at", b"%d" % (SENT + 5000))
    assert (entry.key, entry.value) == (b"key", b"value")


def test_levels_of_our_broker_are_known() -> None:
    entry = waiting(received(("penstock-delay", b"level:2"), ("penstock-target", b"orders")))
    assert entry.deliver_at_ms == SENT + 5000


def test_the_target_is_the_header_the_default_or_the_name_before_the_suffix() -> None:
    both = IntakeRules(dead_topic="bridge.dead", target="default")
    assert waiting(received(("penstock-target", b"orders")), both).topic == "orders"
    assert waiting(received(), both).topic == "default"
    assert waiting(received(topic="orders.delay")).topic == "orders"
    assert waiting(received(("penstock-target", b"t"), ("penstock-target-partition", b"3"))).partition == 3


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ([("penstock-delay", b"5s")], "no header penstock-target"),
        ([("penstock-delay", b"soon"), ("penstock-target", b"t")], "'soon' is not a duration"),
        ([("penstock-target", b"a"), ("penstock-target", b"b")], "is there 2 times"),
        ([("penstock-target", b"\xff")], "is not UTF-8"),
        ([("penstock-target", b"")], "has 0 characters"),
        ([("penstock-target", b"t"), ("penstock-target-partition", b"x")], "the number of a partition"),
        ([("penstock-delay", b"1s"), ("penstock-deliver-at", b"5"), ("penstock-target", b"t")], "does not go together"),
        ([("penstock-schedule", b"daily"), ("penstock-target", b"t")], "cannot be understood"),
    ],
)
def test_what_cannot_be_delayed_is_a_dead_letter_that_is_due_now(headers: Headers, told: str) -> None:
    assert told in reason(received(*headers))


def test_delays_beyond_the_bound_are_dead_letters() -> None:
    rules = IntakeRules(dead_topic="bridge.dead", max_delay_ms=1000, has_schedules=False)
    target = ("penstock-target", b"t")
    assert waiting(received(("penstock-deliver-at", b"%d" % (NOW + 1000)), target), rules).topic == "t"
    assert "1001 ms from now" in reason(received(("penstock-deliver-at", b"%d" % (NOW + 1001)), target), rules)
    assert "in turns" in reason(received(("penstock-schedule", b"every 1m"), target), rules)


def test_a_timer_and_its_cancel_have_the_same_key_and_the_same_shard() -> None:
    timer = waiting(received(("penstock-timer-id", b"a"), ("penstock-delay", b"1s"), ("penstock-target", b"t")))
    cancel = entry_of(received(("penstock-cancel", b"a"), ("penstock-target", b"t"), offset=9_999), RULES, NOW)
    other = entry_of(received(("penstock-cancel", b"a"), ("penstock-target", b"u")), RULES, NOW)
    assert isinstance(cancel, Cancel) and isinstance(other, Cancel)
    assert timer.timer_key == cancel.timer_key != other.timer_key
    for by_topic in (False, True):
        assert shard_of(timer, 0, 97, by_topic=by_topic) == shard_of(cancel, 5, 97, by_topic=by_topic)
    assert dict(timer.headers)["penstock-bridge-timer-id"] == b"a"


def test_round_robin_goes_by_the_offset_and_order_by_the_target() -> None:
    entries = [waiting(received(("penstock-target", b"t"), offset=offset)) for offset in range(0, 4 * RUN, RUN)]
    assert [shard_of(entry, 0, 4, by_topic=False) for entry in entries] == [0, 1, 2, 3]
    assert len({shard_of(entry, 0, 4, by_topic=True) for entry in entries}) == 1


def test_a_message_that_was_due_too_late_is_stored_where_it_belongs() -> None:
    """It may be read again when it is no longer too late, and must not be stored in two databases then."""
    rules = IntakeRules(dead_topic="bridge.dead", max_delay_ms=1000)
    for timer in ([("penstock-timer-id", b"a")], []):
        message = received(*timer, ("penstock-deliver-at", b"%d" % (NOW + 1001)), ("penstock-target", b"t"))
        early, later = entry_of(message, rules, NOW), entry_of(message, rules, NOW + 1)
        assert (early.topic, later.topic) == ("bridge.dead", "t")
        for by_topic in (False, True):
            assert shard_of(early, 1, 97, by_topic=by_topic) == shard_of(later, 1, 97, by_topic=by_topic)


def test_headers_survive_a_column() -> None:
    headers: Headers = (("text", b"\xc3\xa4"), ("bytes", b"\xff\x00"), ("none", None), ("text", b""))
    assert headers_from_text(headers_as_text(headers)) == headers
    assert headers_from_text(headers_as_text(())) == ()


def test_headers_of_another_prefix_are_ours() -> None:
    message = renamed(received(("x-delay", b"5s"), ("x-target", b"orders"), ("x-other", b"1")), "x-")
    assert waiting(message).deliver_at_ms == SENT + 5000
    assert dict(waiting(message).headers)["x-other"] == b"1"


def test_a_refused_message_keeps_its_target_and_loses_what_would_delay_it() -> None:
    message = Outgoing(
        "orders", b"v", b"k", (("penstock-bridge-origin", b"delays/1/7"), ("penstock-deliver-at", b"5"), ("a", b"b"))
    )
    letter = refused_forward(message, "bridge.dead", "too large")
    assert letter.topic == "bridge.dead"
    assert letter.headers == (
        ("a", b"b"),
        ("penstock-target", b"orders"),
        ("penstock-origin", b"delays/1/7/"),
        ("penstock-error", error_text("too large")),
    )


def test_progress_survives_and_is_worth_nothing_for_other_tables() -> None:
    keys = [RowKey(0, NOW, 1), RowKey(3, NOW + 1, 1 << 60)]
    value = encode_progress(b"i" * 16, keys)
    assert decode_progress(value, b"i" * 16) == keys
    assert decode_progress(value, b"j" * 16) == []
    with pytest.raises(TopicError, match="version 9"):
        decode_progress(b"\x09" + value[1:], b"i" * 16)


def test_the_hook_redirects_delays_and_cancels_and_nothing_else() -> None:
    hook = DelayBridge("delays")
    delayed = hook.sending(compose("orders", b"v", key="k", delay="5s", partition=2))
    assert (delayed.topic, delayed.partition, delayed.key) == ("delays", None, b"k")
    assert dict(delayed.headers) == {
        "penstock-delay": b"5000",
        "penstock-target": b"orders",
        "penstock-target-partition": b"2",
    }
    cancel = hook.sending(compose_cancel("orders", "a", key="k", partition=None))
    assert (cancel.topic, dict(cancel.headers)["penstock-target"]) == ("delays", b"orders")
    plain = compose("orders", b"v", tags=["a"])
    assert hook.sending(plain) is plain
    direct = compose("delays", b"v", delay="5s")
    assert hook.sending(direct) is direct
