"""Requests, and the replies to them.

Clients share one reply topic. Each listens to one of its partitions, chosen at random, and ignores replies to others
(`docs/decisions/0005-one-reply-topic.md`). A client starts to listen before it sends its first request, at the end of
the partition, so that it cannot miss a reply.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from penstock.sdk.backend import Backend, PartitionListener
from penstock.sdk.errors import ClosedError, InvalidInputError
from penstock.sdk.headers import CORRELATION, REPLY_TO, value_of
from penstock.sdk.payloads.codecs import JSON_ONLY, Codecs
from penstock.sdk.ports import Outgoing, Receipt, Received
from penstock.sdk.send.outgoing_message import HeadersInput, Value, check_topic, compose

REPLY_TOPIC = "penstock.replies"
PARTITIONS = 64
_CONFIG = {"retention.ms": "600000", "segment.ms": "60000", "cleanup.policy": "delete"}
"""A reply is useful only while its requester waits for it."""
MAX_OPEN = 100_000
"""The largest number of requests that wait for a reply."""


@dataclass(frozen=True, slots=True)
class ReplyToken:
    """Where a reply goes and which request it answers; as text it can be passed on."""

    topic: str
    partition: int
    correlation: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.correlation}"

    @staticmethod
    def parse(text: str) -> ReplyToken:
        """Raises `InvalidInputError` if the text is not a token."""
        parts = text.split("/", 2) if isinstance(text, str) else []
        if len(parts) != 3 or not (parts[1].isascii() and parts[1].isdigit()) or not parts[2]:
            raise InvalidInputError(f"{text!r} is not a reply token")
        check_topic(parts[0])
        return ReplyToken(parts[0], int(parts[1]), parts[2])


def compose_reply(
    token: str, value: Value, headers: HeadersInput | None = None, codecs: Codecs = JSON_ONLY
) -> Outgoing:
    """Build the reply to the request of a token."""
    to = ReplyToken.parse(token)
    answer = compose(to.topic, value, codecs, partition=to.partition, headers=headers or ())
    return replace(answer, headers=(*answer.headers, (CORRELATION, to.correlation.encode())))


class RequestReply:
    """Sends requests and receives replies. Thread-safe."""

    def __init__(self, backend: Backend, topic: str = REPLY_TOPIC) -> None:
        check_topic(topic)
        self._backend = backend
        self._topic = topic
        self._prefix = uuid.uuid4().hex
        """The prefix of this client's correlation ids, which tells its replies from others."""
        self._lock = threading.Lock()
        self._asked = 0
        self._open: dict[str, Future[Received]] = {}
        self._listening: PartitionListener | None = None
        self._partition = -1
        """The one that it listens to."""
        self._is_closed = False

    def ask(self, outgoing: Outgoing, send: Callable[[Outgoing], Future[Receipt]]) -> tuple[str, Future[Received]]:
        """Send a request; the future holds its reply, or why it was not sent. Call `forget` to stop waiting."""
        partition = self._listen()
        future: Future[Received] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if len(self._open) >= MAX_OPEN:
                raise InvalidInputError(f"{MAX_OPEN} requests already wait for replies: nothing was sent")
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
        """Stop waiting for a reply."""
        with self._lock:
            self._open.pop(correlation, None)

    def close(self) -> None:
        """Fail all requests that still wait."""
        with self._lock:
            self._is_closed = True
            listening, self._listening = self._listening, None
            waiting, self._open = self._open, {}
        if listening is not None:
            listening.close()
        for future in waiting.values():
            future.set_exception(ClosedError("the client was closed before the reply arrived"))

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
                raise ClosedError("the client is closed")
            if self._listening is None:
                topics = self._backend.topics
                topics.create(self._topic, PARTITIONS, config=_CONFIG)
                self._partition = random.randrange(topics.partitions(self._topic))
                self._listening = self._backend.listen(self._topic, self._partition, self._answered)
            return self._partition
