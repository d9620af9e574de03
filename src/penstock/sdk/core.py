"""What both clients have in common: everything but the way of waiting."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.clock import SystemClock
from penstock.sdk.access import Access
from penstock.sdk.counters import Counters, Tally
from penstock.sdk.errors import ClosedError
from penstock.sdk.hooks import HookChain, Hooks, SignedHooks
from penstock.sdk.message import Reply
from penstock.sdk.ports import Outgoing, Receipt, Received
from penstock.sdk.receive.handling import Handler
from penstock.sdk.receive.plan import Plan
from penstock.sdk.receive.runners import Runner
from penstock.sdk.receive.subscribing import subscription_on
from penstock.sdk.receive.subscription import Subscription
from penstock.sdk.send.group_commit import GroupCommitOutbox
from penstock.sdk.send.outboxes import ClosableOutbox, DirectOutbox
from penstock.sdk.send.requests import Requests
from penstock.sdk.send.sender import Sender
from penstock.sdk.send.sending import Drop, Keep, Sending, Spill, producer_settings, transactional_settings
from penstock.sdk.send.spill_folder import SpillFolder
from penstock.sdk.send.spilling import SpillingOutbox
from penstock.sdk.send.transactional import TransactionalProducer
from penstock.sdk.send.transactions import Transactions
from penstock.sdk.send.watching import Watch, WatchedOutbox
from penstock.sdk.topics import Topics
from penstock.sdk.waiting import WaitingMessage, Wanted, waiting

GRACE_S = 30.0
"""How long a client that is closed waits for what it holds."""


class Core:
    """The parts of a client, put together."""

    def __init__(
        self,
        bootstrap: str,
        client_id: str | None,
        sending: Sending | None,
        hooks: Sequence[Hooks],
        settings: Mapping[str, Any] | None,
        reply_topic: str,
    ) -> None:
        access = Access(bootstrap, settings=dict(settings or {}))
        self._access = access if client_id is None else replace(access, client_id=client_id)
        self._sending = sending or Sending()
        self._hooks = HookChain(hooks if client_id is None else (SignedHooks(client_id), *hooks))
        self._clock = SystemClock()
        self._tally = Tally()
        self._watch = Watch(self._hooks, self._tally, self._clock)
        self._topics = Topics(self._access)
        self.transactions = Transactions(self._new_transactional_producer, self._watch, self._access.client_id)
        self.requests = Requests(self._access, self._topics, reply_topic)
        self._outbox = WatchedOutbox(self._new_outbox(), self._watch)
        self._lock = threading.Lock()
        self._sure_outbox: WatchedOutbox | None = None
        self._is_closed = False

    @property
    def counters(self) -> Counters:
        return self._tally.counters(self._outbox.inner.buffered, self._outbox.inner.spilled)

    @property
    def room_s(self) -> float:
        """How long whoever waits for the answer anyway also waits for room."""
        return 0.0 if isinstance(self._sending.when_away, Drop) else self._sending.patience_ms / 1000

    def has_room_for(self, outgoing: Outgoing) -> bool:
        """Whether `send` does not have to wait for room."""
        return self._outbox.inner.has_room_for(outgoing)

    def send(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        if self._is_closed:
            raise ClosedError("the client was closed")
        return self._outbox.send_soon(outgoing, room_s)

    def ask(self, outgoing: Outgoing, room_s: float = 0.0) -> tuple[str, Future[Received]]:
        """Sends a request; gives its name, to forget it by, and its answer."""
        return self.requests.ask(outgoing, lambda marked: self.send(marked, room_s))

    def each_partition(self, outgoing: Outgoing) -> list[Outgoing]:
        """The message, to the one partition that it says or for which its key stands, else to all."""
        if outgoing.partition is not None or outgoing.key is not None:
            return [outgoing]
        return [replace(outgoing, partition=number) for number in range(self._topics.partitions(outgoing.topic))]

    def waiting(self, wanted: Wanted) -> list[WaitingMessage]:
        """What waits for its time."""
        return waiting(self._access, wanted)

    def subscription(self, plan: Plan, handler: Handler, runner: Runner, reply: Reply) -> Subscription:
        """A subscription that is not started yet."""
        return subscription_on(
            self._access,
            self._topics,
            plan,
            handler,
            outbox=self._surely(),
            runner=runner,
            hooks=self._hooks,
            reply=reply,
        )

    def flush(self, timeout_s: float) -> bool:
        return self._outbox.inner.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._outbox.inner.close(timeout_s)
        if self._sure_outbox is not None:
            self._sure_outbox.inner.close(timeout_s)
        self.requests.close()
        self.transactions.close()

    def _surely(self) -> WatchedOutbox:
        """For retries and dead letters: what is answered there is with the cluster, however the application sends."""
        if self._sending.delivery == "at-least-once" and isinstance(self._sending.when_away, Keep):
            return self._outbox
        with self._lock:
            if self._sure_outbox is None:
                sending = replace(self._sending, delivery="at-least-once", transactional_id=None, when_away=Keep())
                direct = DirectOutbox(partial(self._new_sender, producer_settings(sending)))
                self._sure_outbox = WatchedOutbox(direct, self._watch)
            return self._sure_outbox

    def _new_outbox(self) -> ClosableOutbox:
        away = self._sending.when_away
        direct = partial(self._new_sender, producer_settings(self._sending))
        if isinstance(away, Spill):
            endless = partial(self._new_sender, producer_settings(self._sending, endless=True))
            return SpillingOutbox(SpillFolder(Path(away.folder), away.bytes), direct, endless, self._tally)
        on_away = (lambda: self._tally.count(dropped=1)) if isinstance(away, Drop) else None
        if self._sending.delivery != "exactly-once":
            return DirectOutbox(direct, on_away)
        # Its messages are watched as they come in: once, however many transactions they go through.
        unwatched = Transactions(self._new_transactional_producer, Watch(HookChain(), Tally(), self._clock), "")
        name = self._sending.transactional_id or f"{self._access.client_id}-{uuid.uuid4().hex[:8]}"
        return GroupCommitOutbox(
            partial(unwatched.transaction, name), away, self._sending.patience_ms / 1000, on_away, unwatched.close
        )

    def _new_sender(self, settings: dict[str, Any]) -> Sender:
        return Sender(self._access.settings_for(settings), self._clock)

    def _new_transactional_producer(self, name: str) -> TransactionalProducer:
        settings = self._access.settings_for(transactional_settings(self._sending, name))
        return TransactionalProducer(settings, self._sending.patience_ms / 1000, self._clock)
