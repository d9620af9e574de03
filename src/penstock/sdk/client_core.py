"""What both clients have in common: everything but the way of waiting."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

from penstock.clock import SystemClock
from penstock.sdk.backend import Backend, TransactionalProducer
from penstock.sdk.counters import Counters, SendTally
from penstock.sdk.errors import ClosedError, InvalidInputError
from penstock.sdk.hooks.base import HookChain, Hooks, SignedHooks, check_hooks
from penstock.sdk.message import Reply
from penstock.sdk.ports import Outgoing, Receipt, Received
from penstock.sdk.receive.handler_call import Handler
from penstock.sdk.receive.handler_runners import Runner
from penstock.sdk.receive.subscription import Subscription
from penstock.sdk.receive.subscription_options import ValidatedOptions
from penstock.sdk.receive.topic_layout import TopicProvisioner
from penstock.sdk.send.buffered_producer import BufferedProducer, ClosableProducer
from penstock.sdk.send.group_commit import GroupCommitProducer
from penstock.sdk.send.observed_producer import ObservedProducer, SendObserver
from penstock.sdk.send.request_reply import RequestReply
from penstock.sdk.send.send_outcome import Receipts, no_receipts
from penstock.sdk.send.sending_options import Drop, Keep, Sending, Spill
from penstock.sdk.send.spill_folder import SpillFolder
from penstock.sdk.send.spilling_producer import SpillingProducer
from penstock.sdk.send.transactions import TransactionPool
from penstock.sdk.timers import TimerQuery, WaitingMessage

GRACE_S = 30.0
"""How long a client that is closed waits for its messages."""


class ClientCore:
    """Assembles the parts of a client."""

    def __init__(
        self,
        new_backend: Callable[[], Backend],
        *,
        sender: str | None,
        sending: Sending | None,
        hooks: Sequence[Hooks],
        reply_topic: str,
    ) -> None:
        """`sender` is the name that every message carries. Makes the backend when the other arguments are checked, and
        closes it in the end.
        """
        if sending is not None and not isinstance(sending, Sending):
            raise InvalidInputError(f"sending must be a penstock.Sending(...), not {sending!r}")
        check_hooks(hooks)
        self._backend = new_backend()
        self._sending = sending or Sending()
        self._hooks = HookChain(hooks if sender is None else (SignedHooks(sender), *hooks))
        self._clock = SystemClock()
        self._tally = SendTally()
        self._observer = SendObserver(self._hooks, self._tally, self._clock)
        self.transactions = TransactionPool(self._new_transactional_producer, self._observer, self._backend.client_id)
        try:
            self.requests = RequestReply(self._backend, reply_topic)
            self._producer = ObservedProducer(self._new_producer(), self._observer)
        except BaseException:
            self._backend.close()
            raise
        self._lock = threading.Lock()
        self._durable_producer: ObservedProducer | None = None
        self._is_closed = False

    @property
    def counters(self) -> Counters:
        return self._tally.counters(self._producer.inner.buffered, self._producer.inner.spilled)

    @property
    def room_s(self) -> float:
        """How long a caller that waits for the result also waits for room."""
        return 0.0 if isinstance(self._sending.when_away, Drop) else self._sending.patience_ms / 1000

    def has_room_for(self, messages: Sequence[Outgoing]) -> bool:
        """Whether these messages do not have to wait for room."""
        return self._producer.inner.has_room_for(len(messages), sum(each.size_bytes for each in messages))

    def send(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        if self._is_closed:
            raise ClosedError("the client is closed")
        return self._producer.send_soon(outgoing, room_s)

    def send_many(self, topic: str, messages: Sequence[Outgoing], room_s: float = 0.0) -> Future[Receipts]:
        """Send messages of a topic; the future holds their receipts, or `SendManyError`."""
        if self._is_closed:
            raise ClosedError("the client is closed")
        return self._producer.send_many(messages, room_s) if messages else no_receipts(topic)

    def ask(self, outgoing: Outgoing, room_s: float = 0.0) -> tuple[str, Future[Received]]:
        """Send a request; returns its correlation id, to forget it by, and its reply."""
        return self.requests.ask(outgoing, lambda marked: self.send(marked, room_s))

    def each_partition(self, outgoing: Outgoing) -> list[Outgoing]:
        """The message for the partition that it or its key selects, otherwise for all partitions."""
        if outgoing.partition is not None or outgoing.key is not None:
            return [outgoing]
        return [
            replace(outgoing, partition=number) for number in range(self._backend.topics.partitions(outgoing.topic))
        ]

    def read_timers(self, query: TimerQuery) -> list[WaitingMessage]:
        """Read the delayed messages that a query asks for."""
        return self._backend.read_timers(query)

    def subscription(self, options: ValidatedOptions, handler: Handler, runner: Runner, reply: Reply) -> Subscription:
        """Create a subscription that is not started."""
        producer = self._durable()
        is_exactly_once = options.delivery == "exactly-once"
        return Subscription(
            options,
            handler,
            provisioner=TopicProvisioner(self._backend.topics),
            consumer=self._backend.group_consumer(options),
            producer=producer,
            runner=runner,
            committer=self._backend.committer(options.group, producer.observer) if is_exactly_once else None,
            hooks=self._hooks,
            reply=reply,
            is_away=lambda: self._backend.is_away,
        )

    def flush(self, timeout_s: float) -> bool:
        return self._producer.inner.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._producer.inner.close(timeout_s)
        if self._durable_producer is not None:
            self._durable_producer.inner.close(timeout_s)
        self.requests.close()
        self.transactions.close()
        self._backend.close()

    def _durable(self) -> ObservedProducer:
        """The producer for retries and dead letters: what it acknowledges is with the cluster, however the application
        sends.
        """
        if self._sending.delivery == "at-least-once" and isinstance(self._sending.when_away, Keep):
            return self._producer
        with self._lock:
            if self._durable_producer is None:
                sending = replace(self._sending, delivery="at-least-once", transactional_id=None, when_away=Keep())
                direct = BufferedProducer(partial(self._backend.producer, sending))
                self._durable_producer = ObservedProducer(direct, self._observer)
            return self._durable_producer

    def _new_producer(self) -> ClosableProducer:
        away = self._sending.when_away
        direct = partial(self._backend.producer, self._sending)
        if isinstance(away, Spill):
            endless = partial(self._backend.producer, self._sending, endless=True)
            return SpillingProducer(SpillFolder(Path(away.folder), away.bytes), direct, endless, self._tally)
        on_away = (lambda: self._tally.count(dropped=1)) if isinstance(away, Drop) else None
        if self._sending.delivery != "exactly-once":
            return BufferedProducer(direct, on_away)
        # Messages are observed when they are accepted: once, however many transactions they go through.
        unobserved = TransactionPool(
            self._new_transactional_producer, SendObserver(HookChain(), SendTally(), self._clock), ""
        )
        name = self._sending.transactional_id or f"{self._backend.client_id}-{uuid.uuid4().hex[:8]}"
        return GroupCommitProducer(
            partial(unobserved.transaction, name), away, self._sending.patience_ms / 1000, on_away, unobserved.close
        )

    def _new_transactional_producer(self, name: str) -> TransactionalProducer:
        return self._backend.transactional_producer(self._sending, name)
