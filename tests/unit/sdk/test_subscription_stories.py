"""What a subscription does with what comes, played step by step without a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.sdk.dedup.store import ClaimedElsewhere, ClaimResult, Dedup, MemoryStore
from penstock.sdk.errors import SendError, SettledError, TopicError, TransactionError
from penstock.sdk.headers import value_of
from penstock.sdk.message import Message
from penstock.sdk.ports import Headers
from penstock.sdk.receive.flow_control import PAUSE_AFTER_MS
from penstock.sdk.receive.handler_runners import drive
from penstock.sdk.receive.topic_layout import RetryTopic, TopicLayout
from support.subscription_story import Story, tp

AWAY = SendError("nobody is there", is_retriable=True)
REFUSED = SendError("too large")


def failing(*wrong: bytes) -> Callable[[Message], None]:
    def handle(message: Message) -> None:
        if message.value in wrong:
            raise ValueError(f"no {message.attempt}")

    return handle


def test_the_original_is_acknowledged_only_when_its_retry_is_durable() -> None:
    story = Story(failing(b"a"))
    story.comes(b"a", b"b")
    story.play()
    assert story.committable() == 0
    retry = story.producer.answer()
    assert (retry.topic, value_of(retry.headers, "penstock-delay")) == ("g.orders.retry", b"1000")
    story.step()
    assert story.committable() == 2
    assert story.hooks.retried_after == [1000]


def test_a_retry_that_could_not_be_sent_is_sent_again_and_nothing_is_acknowledged_meanwhile() -> None:
    story = Story(failing(b"a"))
    story.comes(b"a")
    story.play()
    for _ in range(3):
        story.producer.answer(AWAY)
        assert not story.producer.sent
        story.passes(1000)
    assert story.committable() == 0
    story.producer.answer()
    story.step()
    assert story.committable() == 1


def test_a_retry_that_is_refused_again_and_again_is_a_dead_letter() -> None:
    story = Story(failing(b"a"))
    story.comes(b"a")
    story.play()
    for _ in range(2):
        story.producer.answer(REFUSED)
        story.passes(1000)
    assert story.producer.sent[0][0].topic == "g.orders.retry"
    story.producer.answer(REFUSED)
    assert story.producer.answer().topic == "g.dead"
    story.step()
    assert story.committable() == 1
    assert story.hooks.dead == ["ValueError: no 1"]


def test_a_dead_letter_that_is_refused_is_never_given_up() -> None:
    story = Story(lambda message: message.reject("no"))
    story.comes(b"a")
    story.play()
    for _ in range(3):
        story.producer.answer(REFUSED)
        story.passes(1000)
    assert story.committable() == 0
    story.producer.answer()
    story.step()
    assert story.committable() == 1


def test_what_is_behind_a_slow_message_is_settled_and_not_committed() -> None:
    story = Story(lambda message: None, concurrency=3)
    story.comes(b"a", b"b", b"c")
    story.step()
    slow = story.runner.waiting.popleft()
    story.play()
    assert story.committable() == 0
    assert story.hooks.handled_values == [b"b", b"c"]
    story.runner.waiting.append(slow)
    story.play()
    assert story.committable() == 3


def test_what_nobody_is_given_is_committed_with_what_was_before_it() -> None:
    story = Story(lambda message: None)
    story.comes(b"a", first=7)
    story.play()
    assert story.committable() == 8
    # A marker, or aborted records, lie behind.
    story.consumer.positions[tp(0)] = 12
    story.step()
    assert story.committable() == 12


def test_a_result_of_a_partition_that_was_lost_is_dropped_without_harm() -> None:
    said: list[str] = []

    def handle(message: Message) -> None:
        story.subscription.lost([tp(0)])
        message.ack()
        said.append("nothing was raised")

    story = Story(handle)
    story.comes(b"a")
    story.play()
    assert said == ["nothing was raised"]
    assert story.committable() == 0
    assert story.subscription.in_flight == 0


def test_a_failure_in_a_partition_that_was_lost_is_not_sent_on() -> None:
    def handle(message: Message) -> None:
        story.subscription.lost([tp(0)])
        raise ValueError("somebody else gets it")

    story = Story(handle)
    story.comes(b"a")
    story.play()
    assert not story.producer.sent


def test_a_revoked_partition_commits_what_is_settled_and_drops_what_waits() -> None:
    handled: list[bytes | None] = []
    story = Story(lambda message: handled.append(message.value), partitions=(0, 1), concurrency=1)
    story.comes(b"a", b"b")
    story.comes(b"x", partition=1)
    story.step()
    # The first is done, then the partition is taken away.
    steps = story.runner.waiting.popleft()
    story.consumer.events.append(lambda: story.subscription.revoked([tp(0)]))
    drive(steps)
    story.runner.waiting.clear()
    story.step()
    assert story.committable() == 1
    assert story.subscription.topic_partitions == {tp(1)}
    assert handled == [b"a"]


def test_a_partition_that_comes_back_begins_anew() -> None:
    story = Story(lambda message: None)
    story.comes(b"a", b"b")
    story.play()
    story.subscription.lost([tp(0)])
    story.subscription.assigned([tp(0)])
    story.consumer.positions.clear()
    story.comes(b"b", first=1)
    story.play()
    assert story.committable() == 2


def test_a_group_that_is_set_back_while_it_reads_handles_again_from_there() -> None:
    handled: list[bytes | None] = []
    story = Story(lambda message: handled.append(message.value))
    story.comes(b"a", b"b", first=5)
    story.play()
    story.comes(b"old", first=0)
    story.play()
    assert handled == [b"a", b"b", b"old"]
    assert story.committable() == 1


def test_an_explicit_retry_keeps_its_time_and_a_second_verb_is_refused() -> None:
    refused: list[SettledError] = []

    def handle(message: Message) -> None:
        message.retry(after="7s")
        with pytest.raises(SettledError) as error:
            message.reject()
        refused.append(error.value)

    story = Story(handle)
    story.comes(b"a")
    story.play()
    retry = story.producer.answer()
    assert value_of(retry.headers, "penstock-delay") == b"7000"
    assert len(refused) == 1


def test_silence_past_the_deadline_is_a_failure_and_what_is_said_later_does_not_count() -> None:
    late: list[bool] = []

    def handle(message: Message) -> None:
        story.clock.advance(5000)
        story.subscription.step(0.0)
        with pytest.raises(SettledError):
            message.ack()
        late.append(True)

    story = Story(handle, deadline="5s")
    story.comes(b"a")
    story.play()
    retry = story.producer.answer()
    assert late == [True]
    assert value_of(retry.headers, "penstock-error") == b"DeadlineError: not settled within 5 s"
    assert not story.producer.sent


def test_an_extended_deadline_counts_from_when_it_was_extended() -> None:
    def handle(message: Message) -> None:
        for _ in range(5):
            story.clock.advance(4000)
            message.extend("5s")
            story.subscription.step(0.0)

    story = Story(handle, deadline="5s")
    story.comes(b"a")
    story.play()
    assert not story.producer.sent
    assert story.committable() == 1


def test_a_full_subscription_pauses_everything_and_resumes_when_half_is_done() -> None:
    story = Story(lambda message: None, in_flight=4, concurrency=1)
    story.comes(*(b"%d" % number for number in range(10)))
    story.step()
    assert story.subscription.in_flight == 4
    story.clock.advance(1)
    story.step()
    story.clock.advance(PAUSE_AFTER_MS)
    story.step()
    assert story.consumer.paused == {tp(0)}
    # A partition that comes now is paused too.
    story.subscription.assigned([tp(1)])
    story.step()
    assert story.consumer.paused == {tp(0), tp(1)}
    story.runner.run()
    story.step()
    assert not story.consumer.paused
    story.play(6)
    assert story.committable() == 10


def test_a_partition_that_was_paused_when_it_was_lost_is_resumed_when_it_comes_back() -> None:
    story = Story(lambda message: None, in_flight=1)
    story.comes(b"a")
    story.step()
    story.clock.advance(1)
    story.step()
    story.clock.advance(PAUSE_AFTER_MS)
    story.step()
    assert story.consumer.paused == {tp(0)}
    story.subscription.lost([tp(0)])
    story.subscription.assigned([tp(0)])
    story.runner.waiting.clear()
    story.step()
    assert not story.consumer.paused


def test_a_key_waits_for_its_failed_message_here() -> None:
    handled: list[tuple[bytes | None, int]] = []

    def handle(message: Message) -> None:
        handled.append((message.value, message.attempt))
        if message.value == b"a1" and message.attempt == 1:
            raise ValueError

    story = Story(handle, ordered=True, concurrency=4)
    story.comes(b"a1", b"a2", key=b"a")
    story.comes(b"b1", key=b"b")
    story.play()
    assert handled == [(b"a1", 1), (b"b1", 1)]
    assert story.committable() == 0
    story.passes(999)
    story.runner.run()
    assert len(handled) == 2
    story.passes(1)
    story.play()
    assert handled[2:] == [(b"a1", 2), (b"a2", 1)]
    assert not story.producer.sent
    assert story.committable() == 3


def test_at_most_once_hands_out_nothing_before_its_commit_was_answered() -> None:
    handled: list[bytes | None] = []
    story = Story(lambda message: handled.append(message.value), delivery="at-most-once")
    story.comes(b"a", b"b")
    story.play()
    assert handled == []
    ((positions, done),) = story.consumer.commits
    assert positions == {tp(0): 2}
    story.consumer.commits.clear()
    done(False)
    story.passes(1000)
    ((_, done),) = story.consumer.commits
    done(True)
    story.play()
    assert handled == [b"a", b"b"]


def test_at_most_once_does_not_commit_for_a_partition_that_is_gone() -> None:
    handled: list[bytes | None] = []
    story = Story(lambda message: handled.append(message.value), delivery="at-most-once")
    story.comes(b"a")
    story.play()
    ((_, done),) = story.consumer.commits
    story.consumer.commits.clear()
    story.subscription.lost([tp(0)])
    done(False)
    story.passes(1000)
    assert not story.consumer.commits
    assert handled == []
    assert story.subscription.in_flight == 0


def test_a_round_commits_what_was_sent_and_all_offsets_together() -> None:
    def handle(message: Message) -> None:
        message.transaction.send("out", message.value)
        if message.value == b"bad":
            raise ValueError

    story = Story(handle, delivery="exactly-once", concurrency=2)
    story.comes(b"a", b"bad", b"c")
    story.play()
    ((outgoing, positions),) = story.committer.committed
    assert [(each.topic, each.value) for each in outgoing] == [("out", b"a"), ("g.orders.retry", b"bad"), ("out", b"c")]
    assert positions == {tp(0): 3}
    assert not story.producer.sent


def test_what_comes_during_a_round_waits_for_the_next() -> None:
    handled: list[bytes | None] = []
    story = Story(lambda message: handled.append(message.value), delivery="exactly-once")
    story.comes(b"a")
    story.step()
    story.comes(b"b")
    story.step()
    assert len(story.runner.waiting) == 1
    story.play()
    assert [positions for _, positions in story.committer.committed] == [{tp(0): 1}, {tp(0): 2}]


def test_a_transaction_that_fails_goes_back_to_what_is_committed() -> None:
    handled: list[bytes | None] = []
    story = Story(lambda message: handled.append(message.value), delivery="exactly-once")
    story.committer.failures.append(TransactionError("fenced"))
    story.consumer.can_rewind = False
    story.comes(b"a", b"b")
    story.play()
    story.passes(500)
    assert story.consumer.rewinds == 1
    story.consumer.can_rewind = True
    story.step()
    assert story.consumer.rewinds == 2
    assert story.subscription.in_flight == 0
    story.consumer.positions.clear()
    story.comes(b"a", b"b", first=0)
    story.play()
    assert handled == [b"a", b"b", b"a", b"b"]
    assert [positions for _, positions in story.committer.committed] == [{tp(0): 2}]


def test_of_a_refused_transaction_only_the_one_to_blame_is_a_dead_letter() -> None:
    story = Story(lambda message: message.transaction.send("out", message.value), delivery="exactly-once")
    story.committer.refuse(1)
    story.comes(b"a", b"b", b"c")
    story.play()
    ((outgoing, positions),) = story.committer.committed
    assert [(each.topic, each.value) for each in outgoing] == [("out", b"a"), ("g.dead", b"b"), ("out", b"c")]
    assert positions == {tp(0): 3}


def test_a_partition_lost_in_the_middle_of_a_round_is_left_out_of_its_transaction() -> None:
    story = Story(
        lambda message: message.transaction.send("out", message.value),
        partitions=(0, 1),
        delivery="exactly-once",
        concurrency=1,
    )
    story.comes(b"a")
    story.comes(b"x", partition=1)
    story.step()
    story.subscription.lost([tp(1)])
    story.play()
    ((outgoing, positions),) = story.committer.committed
    assert [each.value for each in outgoing] == [b"a"]
    assert positions == {tp(0): 1}


def test_an_id_that_is_done_is_acknowledged_without_its_handler() -> None:
    handled: list[bytes | None] = []
    store = MemoryStore()
    story = Story(lambda message: handled.append(message.value), dedup=Dedup(store))
    biz = (("penstock-biz-id", b"1"),)
    story.comes(b"a", b"again", headers=biz)
    story.play()
    assert handled == [b"a"]
    assert story.committable() == 2


def test_an_id_that_is_busy_comes_again_as_later_as_it_has_been_busy() -> None:
    store = MemoryStore()
    story = Story(lambda message: None, dedup=Dedup(store), deadline="55s")
    assert store.claim("g", "1", "another", 48_000) is ClaimResult.CLAIMED
    story.comes(b"a", headers=(("penstock-biz-id", b"1"),))
    story.play()
    retry = story.producer.answer()
    assert value_of(retry.headers, "penstock-attempt") == b"0"
    delay_ms = int(value_of(retry.headers, "penstock-delay") or b"")
    assert 12_000 <= delay_ms < 13_000


def test_a_failed_id_is_free_again() -> None:
    store = MemoryStore()
    story = Story(failing(b"a"), dedup=Dedup(store))
    story.comes(b"a", headers=(("penstock-biz-id", b"1"),))
    story.play()
    assert store.claim("g", "1", "another", 1000) is ClaimResult.CLAIMED


def test_work_done_after_the_partition_was_lost_is_still_marked_as_done() -> None:
    store = MemoryStore()

    def handle(message: Message) -> None:
        story.subscription.lost([tp(0)])

    story = Story(handle, dedup=Dedup(store))
    story.comes(b"a", headers=(("penstock-biz-id", b"1"),))
    story.play()
    assert store.claim("g", "1", "the next owner", 1000) is ClaimResult.DONE


def test_a_store_that_is_away_costs_no_attempt() -> None:
    class Away(MemoryStore):
        def claim(self, group: str, biz_id: str, token: str, lease_ms: int) -> ClaimResult | ClaimedElsewhere:
            raise ConnectionError("no route to the store")

    handled: list[bytes | None] = []
    story = Story(lambda message: handled.append(message.value), dedup=Dedup(Away()))
    story.comes(b"a", headers=(("penstock-biz-id", b"1"),))
    story.play()
    retry = story.producer.answer()
    assert handled == []
    assert value_of(retry.headers, "penstock-attempt") == b"0"
    assert b"no route to the store" in (value_of(retry.headers, "penstock-error") or b"")


def test_a_stop_calls_no_more_handlers_and_is_over_when_what_runs_is_done() -> None:
    handled: list[bytes | None] = []
    story = Story(lambda message: handled.append(message.value), concurrency=1)
    story.comes(b"a", b"b", b"c")
    story.step()
    story.subscription.ask_to_stop(30)
    story.step()
    assert not story.subscription.is_over()
    story.play()
    assert handled == [b"a"]
    assert story.subscription.is_over()
    assert story.committable() == 1
    story.subscription.leave()
    assert story.consumer.is_closed


def test_what_comes_in_the_moment_of_a_stop_is_left_to_others() -> None:
    handled: list[bytes | None] = []
    story = Story(lambda message: handled.append(message.value))
    story.comes(b"a", b"b")
    story.play()
    story.comes(b"c", b"d")
    # Another thread stops the subscription while it waits for messages.
    story.consumer.events.append(lambda: story.subscription.ask_to_stop(30))
    story.play()
    assert handled == [b"a", b"b"]
    assert story.subscription.is_over()
    assert story.committable() == 2


def test_a_stop_waits_for_retries_on_their_way_and_not_longer_than_its_grace() -> None:
    story = Story(failing(b"a"))
    story.comes(b"a")
    story.play()
    story.subscription.ask_to_stop(30)
    story.step()
    assert not story.subscription.is_over()
    story.clock.advance(30_000)
    assert story.subscription.is_over()


def test_the_subscription_reads_its_retries_beside_its_topics() -> None:
    story = Story(lambda message: None)
    assert story.consumer.topics == ["orders", "g.orders.retry"]
    assert story.consumer.from_end == []
    assert Story(lambda message: None, from_beginning=False).consumer.from_end == ["orders"]
    assert Story(lambda message: None, from_beginning=True).consumer.from_end == []


# Retries that version 0.1 has left in the topic that all subscriptions of a group shared.

SHARED = TopicLayout(
    {"orders": RetryTopic("g.orders.retry", 1)}, "g.dead", dead_partitions=1, shared_retry=RetryTopic("g.retry", 1)
)


def left_behind(origin: str, failures: int = 1) -> Headers:
    return (("penstock-attempt", b"%d" % failures), ("penstock-origin", f"{origin}/0/7/1000".encode()))


def test_a_retry_of_another_topic_moves_to_that_topics_retries_and_counts_as_read_once_it_is_there() -> None:
    handled: list[bytes | None] = []
    story = Story(lambda message: handled.append(message.value), layout=SHARED)
    assert story.consumer.topics == ["orders", "g.orders.retry", "g.retry"]
    story.subscription.assigned([tp(0, "g.retry")])
    story.comes(b"theirs", topic="g.retry", headers=left_behind("refunds"))
    story.comes(b"ours", topic="g.retry", headers=left_behind("orders"))
    story.play()
    assert handled == [b"ours"]
    assert story.consumer.settled_at.get(tp(0, "g.retry")) in (None, 0)
    moved = story.producer.answer()
    assert (moved.topic, moved.value) == ("g.refunds.retry", b"theirs")
    assert moved.headers == left_behind("refunds")
    story.play()
    assert story.consumer.settled_at[tp(0, "g.retry")] == 2


def test_a_retry_of_another_topic_moves_inside_the_transaction_of_its_round() -> None:
    handled: list[bytes | None] = []
    story = Story(lambda message: handled.append(message.value), layout=SHARED, delivery="exactly-once")
    story.subscription.assigned([tp(0, "g.retry")])
    story.comes(b"theirs", topic="g.retry", headers=left_behind("refunds"))
    story.play()
    ((outgoing, positions),) = story.committer.committed
    assert [(each.topic, each.value) for each in outgoing] == [("g.refunds.retry", b"theirs")]
    assert positions == {tp(0, "g.retry"): 1}
    assert handled == []


@pytest.mark.parametrize("options", [{"delivery": "at-most-once"}, {"ordered": True}, {"batch": 10}])
def test_a_retry_of_another_topic_is_handled_in_no_other_mode_either(options: dict[str, Any]) -> None:
    handled: list[Any] = []
    story = Story(handled.append, layout=SHARED, **options)
    story.subscription.assigned([tp(0, "g.retry")])
    story.comes(b"theirs", topic="g.retry", headers=left_behind("refunds"), key=b"k")
    story.play()
    for _, done in story.consumer.commits:
        done(True)
    story.play()
    assert handled == []
    assert story.producer.answer().topic == "g.refunds.retry"


def test_a_retry_that_cannot_be_moved_now_waits_and_loses_no_attempt() -> None:
    class Away(Story):
        def retry_topic(self, group: str, topic: str) -> RetryTopic:
            raise TopicError("no broker answers")

    story = Away(lambda message: None, layout=SHARED)
    story.subscription.assigned([tp(0, "g.retry")])
    story.comes(b"theirs", topic="g.retry", headers=left_behind("refunds", 2))
    story.play()
    outgoing = story.producer.answer()
    assert outgoing.topic == "g.retry"
    assert value_of(outgoing.headers, "penstock-delay") == b"2000"
    assert value_of(outgoing.headers, "penstock-attempt") == b"2"
    assert value_of(outgoing.headers, "penstock-origin") == b"refunds/0/7/1000"
