"""Requests: sent, and answered on a partition of the reply topic where this client listens.

Clients share one reply topic and each listens to one of its partitions, chosen by chance; what is for others is passed
over (`docs/decisions/0005-one-reply-topic.md`). Listening begins with the first request, at the end of the partition as
it is before the request is sent: so no answer can come too early to be seen.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Position

from penstock.sdk.access import Access
from penstock.sdk.decoding import received_of
from penstock.sdk.errors import ClosedError, InvalidInputError, TopicError
from penstock.sdk.failures import reason_of
from penstock.sdk.headers import CORRELATION, REPLY_TO, value_of
from penstock.sdk.ports import Outgoing, Receipt, Received
from penstock.sdk.send.composing import HeadersGiven, Payload, check_topic, compose
from penstock.sdk.topics import Topics

REPLY_TOPIC = "penstock.replies"
PARTITIONS = 64
_CONFIG = {"retention.ms": "600000", "segment.ms": "60000", "cleanup.policy": "delete"}
"""A reply is of use for as long as somebody waits for it."""
MAX_OPEN = 100_000
"""Requests that wait for their answers at most."""
_POLL_S = 0.1
_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class ReplyToken:
    """Where an answer goes, and which request it answers; as text it can be handed on."""

    topic: str
    partition: int
    correlation: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.correlation}"

    @staticmethod
    def parse(text: str) -> ReplyToken:
        """`InvalidInputError` if it is none."""
        parts = text.split("/", 2) if isinstance(text, str) else []
        if len(parts) != 3 or not (parts[1].isascii() and parts[1].isdigit()) or not parts[2]:
            raise InvalidInputError(f"{text!r} is no reply token")
        check_topic(parts[0])
        return ReplyToken(parts[0], int(parts[1]), parts[2])


def compose_reply(token: str, value: Payload, headers: HeadersGiven | None = None) -> Outgoing:
    """The message that answers the request of a token."""
    to = ReplyToken.parse(token)
    answer = compose(to.topic, value, partition=to.partition, headers=headers or ())
    return replace(answer, headers=(*answer.headers, (CORRELATION, to.correlation.encode())))


class Requests:
    """Sends requests and listens for their answers. Any thread may."""

    def __init__(self, access: Access, topics: Topics, topic: str = REPLY_TOPIC) -> None:
        check_topic(topic)
        self._access = access
        self._topics = topics
        self._topic = topic
        self._prefix = uuid.uuid4().hex
        """Of this client's correlations: by it an answer for another is told apart."""
        self._lock = threading.Lock()
        self._asked = 0
        self._open: dict[str, Future[Received]] = {}
        self._listening: _Listening | None = None
        self._is_closed = False

    def ask(self, outgoing: Outgoing, send: Callable[[Outgoing], Future[Receipt]]) -> tuple[str, Future[Received]]:
        """Sends a request; the future has its answer, or why it was not sent. `forget` what is waited for no more."""
        partition = self._listen()
        future: Future[Received] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if len(self._open) >= MAX_OPEN:
                raise InvalidInputError(f"{MAX_OPEN} requests wait for their answers: no more are sent")
            self._asked += 1
            correlation = f"{self._prefix}-{self._asked}"
            self._open[correlation] = future
        marks = (
            (REPLY_TO, f"{self._topic}/{partition}".encode()),
            (CORRELATION, correlation.encode()),
        )
        try:
            sent = send(replace(outgoing, headers=(*outgoing.headers, *marks)))
        except BaseException:
            self.forget(correlation)
            raise
        sent.add_done_callback(lambda done: self._was_sent(correlation, done))
        return correlation, future

    def forget(self, correlation: str) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._open.pop(correlation, None)

    def close(self) -> None:
        """Whoever still waits is told."""
        with self._lock:
            self._is_closed = True
            listening, self._listening = self._listening, None
            waiting, self._open = self._open, {}
        if listening is not None:
            listening.close()
        for future in waiting.values():
            future.set_exception(ClosedError("the client was closed before the answer came"))

    def _was_sent(self, correlation: str, sent: Future[Receipt]) -> None:
        error = sent.exception()
        if error is not None:
            with self._lock:
                future = self._open.pop(correlation, None)
            if future is not None:
                future.set_exception(error)

    def _answered(self, received: Received) -> None:
        correlation = (value_of(received.headers, CORRELATION) or b"").decode("utf-8", "replace")
        if not correlation.startswith(self._prefix):
            return
        with self._lock:
            future = self._open.pop(correlation, None)
        if future is not None:
            future.set_result(received)

    def _listen(self) -> int:
        with self._lock:
            if self._is_closed:
                raise ClosedError("the client was closed")
            if self._listening is None:
                self._topics.make(self._topic, PARTITIONS, config=_CONFIG)
                partition = random.randrange(self._topics.partitions(self._topic))
                self._listening = _Listening(self._access, self._topic, partition, self._answered)
            return self._listening.partition


class _Listening:
    """Reads one partition from its end on, until it is closed."""

    def __init__(self, access: Access, topic: str, partition: int, on_message: Callable[[Received], None]) -> None:
        self.partition = partition
        self._on_message = on_message
        self._is_closed = False
        self._consumer = Consumer(access.settings_for(_consumer_settings(access)))
        try:
            self._begin(Position(topic, partition))
        except BaseException:
            self._consumer.close()
            raise
        self._thread = threading.Thread(target=self._run, name="penstock-replies", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()

    def _begin(self, place: Position) -> None:
        try:
            _, end = self._consumer.get_watermark_offsets(place, timeout=_ANSWER_S)
        except KafkaException as error:
            raise TopicError(f"the reply topic {place.topic} cannot be read: {reason_of(error)}") from None
        self._consumer.assign([Position(place.topic, place.partition, end)])

    def _run(self) -> None:
        while not self._is_closed:
            message = self._consumer.poll(_POLL_S)
            if message is not None and message.error() is None:
                self._on_message(received_of(message))
        self._consumer.close()


def _consumer_settings(access: Access) -> dict[str, Any]:
    """The library demands a group, but nothing joins one."""
    return {
        "group.id": access.client_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # What was missed while its partition was trimmed is gone; answers from now on still count.
        "auto.offset.reset": "latest",
        "reconnect.backoff.max.ms": 1000,
    }
