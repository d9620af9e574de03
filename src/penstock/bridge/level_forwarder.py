"""Fixed levels: forwards the messages of a delay topic, each partition with a delay of its own.

One thread. A partition whose next message is not due is paused, and its consumer sought back to that message; polling
goes on, so the group stays as it is. Forward first, commit after.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.bridge.bridge_metrics import BridgeMetrics
from penstock.bridge.forwarded_message import TargetError, dead_letter, forwarded_headers, target_of, with_due_time
from penstock.bridge.forwarder import Forwarder, RefusedError
from penstock.bridge.levels import split_by_due_time
from penstock.bridge.options import LevelOptions
from penstock.bridge.prefixed_headers import renamed
from penstock.bridge.target_topics import TargetTopics
from penstock.clock import Clock
from penstock.ids import TopicPartition
from penstock.sdk.errors import ClientError
from penstock.sdk.kafka.group_consumer import KafkaGroupConsumer
from penstock.sdk.kafka.transaction_committer import KafkaTransactionCommitter
from penstock.sdk.ports import Outgoing, Received
from penstock.sdk.problem_log import OngoingProblem
from penstock.sdk.receive.exactly_once import RefusedError as TransactionRefused

log = logging.getLogger(__name__)

_POLL_S = 0.1
_AGAIN_S = 0.5
_SEEKS = 3
"""A message that does not come after so many is no longer there."""


class LevelForwarder:
    """Runs until it is stopped; then leaves the group."""

    def __init__(
        self,
        consumer: KafkaGroupConsumer,
        committer: KafkaTransactionCommitter | None,
        forwarder: Forwarder,
        topics: TargetTopics,
        options: LevelOptions,
        metrics: BridgeMetrics,
        clock: Clock,
    ) -> None:
        """With a committer messages and offsets are one transaction; without it the forwarder sends."""
        self._consumer = consumer
        self._committer = committer
        self._forwarder = forwarder
        self._topics = topics
        self._options = options
        self._metrics = metrics
        self._clock = clock
        self._stop = threading.Event()
        self._assigned: set[TopicPartition] = set()
        self._new: set[TopicPartition] = set()
        """Assigned by the last poll: librdkafka remembers that they were paused when this member had them before."""
        self._resume_ms: dict[TopicPartition, int] = {}
        """When the next message of a paused partition is due."""
        self._expected: dict[TopicPartition, int] = {}
        """Offset of that message: it comes first when the partition is resumed."""
        self._sent_back: dict[TopicPartition, int] = {}
        """How often another message came first."""
        self._refused: dict[tuple[TopicPartition, int], list[str]] = {}
        """Why messages were refused, by their target and perhaps by the dead-letter topic, until they are sent there.
        """
        self._alone = 0
        """So many of the next messages are sent one at a time: one of them was refused, and this tells which."""
        self.problem = OngoingProblem(log, "due messages are not forwarded; retrying", "forwarding works again")

    def stop(self) -> None:
        """What is being sent is finished."""
        self._stop.set()

    def run(self) -> None:
        if self._committer is None:
            self._forwarder.start(b"")
        try:
            self._consumer.join(self._options.topics, self)
            while not self._stop.is_set():
                self._step()
        finally:
            self._consumer.close()
            self._forwarder.close()
            if self._committer is not None:
                self._committer.close()

    def assigned(self, topic_partitions: Sequence[TopicPartition]) -> None:
        self._assigned.update(topic_partitions)
        self._new.update(topic_partitions)
        self._forget(topic_partitions)

    def revoked(self, topic_partitions: Sequence[TopicPartition]) -> None:
        self._assigned.difference_update(topic_partitions)
        self._forget(topic_partitions)

    def lost(self, topic_partitions: Sequence[TopicPartition]) -> None:
        self.revoked(topic_partitions)

    def _forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for tp in topic_partitions:
            self._resume_ms.pop(tp, None)
            self._expected.pop(tp, None)
            self._sent_back.pop(tp, None)

    def _step(self) -> None:
        now_ms = self._clock.now_ms()
        if ready := [tp for tp, due_ms in self._resume_ms.items() if due_ms <= now_ms]:
            self._consumer.resume(ready)
            for tp in ready:
                del self._resume_ms[tp]
        next_ms = min(self._resume_ms.values(), default=now_ms + 60_000)
        wait_s = min(_POLL_S, max(0.001, (next_ms - now_ms) / 1000))
        polled = self._consumer.poll(1 if self._alone else self._options.batch, wait_s)
        if self._new:
            self._consumer.resume(self._new & self._assigned)
            self._new.clear()
        received = self._in_sequence(polled)
        if not received:
            return
        batch = split_by_due_time(received, self._options.levels_ms, self._clock.now_ms())
        for tp, (offset, due_ms) in batch.waits.items():
            self._wait_at(tp, offset, due_ms)
        rejected = {(each.topic_partition, each.offset): reason for each, reason in batch.rejected}
        ready_messages = [
            each
            for each in received
            if each.topic_partition not in batch.waits or each.offset < batch.waits[each.topic_partition][0]
        ]
        if not ready_messages:
            return
        try:
            self._send(ready_messages, rejected)
            self.problem.end()
        except ClientError as error:
            self.problem.report(error)
            self._read_again(ready_messages)

    def _in_sequence(self, received: Sequence[Received]) -> list[Received]:
        """Without messages behind one that was read before and has to come first: the consumer is sent back again."""
        kept: list[Received] = []
        sent_back: set[TopicPartition] = set()
        for each in received:
            tp = each.topic_partition
            expected = self._expected.get(tp)
            if tp in sent_back or tp in self._resume_ms:
                continue
            if expected is not None and each.offset > expected:
                tries = self._sent_back[tp] = self._sent_back.get(tp, 0) + 1
                if tries <= _SEEKS:
                    sent_back.add(tp)
                    self._consumer.seek(tp, expected)
                    continue
                log.warning("%s: offsets %s to %s were deleted while they waited", tp, expected, each.offset - 1)
            self._expected.pop(tp, None)
            self._sent_back.pop(tp, None)
            kept.append(each)
        return kept

    def _wait_at(self, tp: TopicPartition, offset: int, due_ms: int) -> None:
        self._consumer.pause([tp])
        self._consumer.seek(tp, offset)
        self._expected[tp] = offset
        self._resume_ms[tp] = due_ms

    def _read_again(self, messages: Sequence[Received]) -> None:
        """Go on from what is committed, because a transaction may have worked; or from what was not acknowledged."""
        if self._committer is None:
            firsts: dict[TopicPartition, int] = {}
            for each in messages:
                firsts.setdefault(each.topic_partition, each.offset)
            for tp, offset in firsts.items():
                self._wait_at(tp, offset, self._clock.now_ms() + int(_AGAIN_S * 1000))
            return
        while not self._stop.is_set() and not self._consumer.seek_to_committed():
            self._stop.wait(_AGAIN_S)
        self._consumer.resume(list(self._assigned))
        self._forget(list(self._assigned))
        if not self._alone:
            self._stop.wait(_AGAIN_S)

    def _send(self, messages: Sequence[Received], rejected: dict[tuple[TopicPartition, int], str]) -> None:
        outgoing = [self._outgoing(each, rejected) for each in messages]
        ends = {each.topic_partition: each.offset + 1 for each in messages}
        if self._committer is not None:
            self._commit(messages, outgoing, ends)
        else:
            self._send_plain(messages, outgoing)
            self._consumer.store_offsets(ends)
        now_ms = self._clock.now_ms()
        self._metrics.received.inc(len(messages))
        for each, sent in zip(messages, outgoing, strict=True):
            self._refused.pop((each.topic_partition, each.offset), None)
            if sent.topic == self._options.dead_topic:
                self._metrics.dead_lettered.inc()
            else:
                self._metrics.forwarded.inc()
                due_ms = self._due_ms(each)
                self._metrics.lateness.observe(max(0, now_ms - due_ms) / 1000)

    def _commit(
        self, messages: Sequence[Received], outgoing: Sequence[Outgoing], ends: dict[TopicPartition, int]
    ) -> None:
        assert self._committer is not None
        try:
            self._committer.commit(outgoing, ends, self._consumer.group_metadata())
        except TransactionRefused as refused:
            if len(messages) == 1:
                self._refused.setdefault((messages[0].topic_partition, messages[0].offset), []).append(str(refused))
            self._alone = len(messages)
            raise
        self._alone = max(0, self._alone - len(messages))

    def _send_plain(self, messages: Sequence[Received], outgoing: Sequence[Outgoing]) -> None:
        """Send all; what is refused becomes a dead letter, and the others are sent."""
        try:
            self._forwarder.forward(outgoing, [])
        except RefusedError as refused:
            left = [number for number in range(len(outgoing)) if number not in refused.sent]
            if len(left) > 1:
                for number in left:
                    self._send_plain([messages[number]], [outgoing[number]])
                return
            message = messages[left[0]]
            letter = dead_letter(message, self._options.dead_topic, str(refused))
            try:
                self._forwarder.forward([letter], [])
            except RefusedError as again:
                smaller = Outgoing(topic=letter.topic, value=None, headers=letter.headers)
                log.warning("the value of a dead letter is left out: %s", again)
                try:
                    self._forwarder.forward([smaller], [])
                except RefusedError as last:
                    raise ClientError(f"the dead-letter topic {letter.topic} accepts no messages: {last}") from None

    def _outgoing(self, received: Received, rejected: dict[tuple[TopicPartition, int], str]) -> Outgoing:
        message = renamed(received, self._options.header_prefix)
        place = (message.topic_partition, message.offset)
        refusals = self._refused.get(place, [])
        reason = rejected.get(place) or next(iter(refusals), None)
        try:
            topic, partition = target_of(message.headers, message.topic, self._options.target)
            if reason is None and self._topics.missing({topic}):
                reason = f"topic {topic} does not exist"
        except TargetError as error:
            reason = reason or str(error)
        if len(refusals) > 1:
            letter = dead_letter(message, self._options.dead_topic, f"{reason}; its value is left out: {refusals[-1]}")
            return replace(letter, value=None)
        if reason is not None:
            return dead_letter(message, self._options.dead_topic, reason)
        headers = with_due_time(forwarded_headers(message), self._due_ms(message))
        return Outgoing(topic=topic, value=message.value, key=message.key, headers=headers, partition=partition)

    def _due_ms(self, message: Received) -> int:
        return (message.timestamp_ms or 0) + self._options.levels_ms[message.partition]
