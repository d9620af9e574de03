"""What is in hand and what becomes of it: the middle of a subscription, around the pure parts.

Messages come in by `receive`, go out to handlers through the runner, and end in an `Ending`. Any thread may call; one
lock guards everything, and nothing that waits is done under it. Time passes by `tick`.
"""

from __future__ import annotations

import heapq
import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count

from penstock.clock import Clock
from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.sdk.errors import SettledError
from penstock.sdk.headers import failures_of
from penstock.sdk.hooks import Hooks
from penstock.sdk.message import Again, Message, Reply, Verdict
from penstock.sdk.ports import Received
from penstock.sdk.receive.claims import Claims
from penstock.sdk.receive.collecting import Collected
from penstock.sdk.receive.forwarding import Later, fate_of, tried_here
from penstock.sdk.receive.handing import Ending, Entry, Handout, Job, Tenure
from penstock.sdk.receive.handling import Handler, Handling
from penstock.sdk.receive.lanes import Lanes
from penstock.sdk.receive.pace import Rate
from penstock.sdk.receive.plan import Plan
from penstock.sdk.receive.runners import Runner

log = logging.getLogger(__name__)


class Engine:
    """One subscription's messages."""

    def __init__(
        self,
        plan: Plan,
        handler: Handler,
        runner: Runner,
        *,
        hooks: Hooks,
        clock: Clock,
        reply: Reply | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.plan = plan
        self.hooks = hooks
        self.clock = clock
        self.runner = runner
        self._reply = reply
        self.chance = chance
        self._claims = Claims(plan)
        self._handling = Handling(handler, self._claims, hooks, self, plan.batch is not None)
        self.changed = threading.Condition(threading.RLock())
        """The lock, and told when something has left."""
        self._ending: Ending | None = None
        self._tenures: dict[TopicPartition, Tenure] = {}
        self._lanes: Lanes[Entry] = Lanes()
        self._rate = Rate(plan.rate, clock.monotonic_ms())
        self._jobs: set[Job] = set()
        self._strays = 0
        """In hand although their partition is not ours any more."""
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._is_draining = False

    def end_with(self, ending: Ending) -> None:
        """Before the first message: how they end."""
        self._ending = ending

    # What the polling thread tells.

    def assign(self, places: Iterable[TopicPartition]) -> None:
        with self.changed:
            for place in places:
                self._tenures[place] = Tenure(place)

    def receive(self, messages: Sequence[Received]) -> None:
        if not messages:
            return
        entries = []
        with self.changed:
            for received in messages:
                tenure = self._tenure_of(received)
                tenure.ledger.hand_out(received.offset)
                entry = Entry(received, tenure, self._lane_of(received), uuid.uuid4().hex)
                tenure.entries.add(entry)
                entries.append(entry)
        for entry in entries:
            self.hooks.received(Message(entry.received))
        self._its_ending().arrived(entries)

    def tick(self) -> None:
        """Time has passed: what is due is done, what has taken too long has failed."""
        now_ms = self.clock.monotonic_ms()
        with self.changed:
            due = []
            while self._later and self._later[0][0] <= now_ms:
                due.append(heapq.heappop(self._later)[2])
            late = [
                (job, handout)
                for job in self._jobs
                for handout in job.handouts
                if not handout.is_settled and handout.deadline_ms is not None and handout.deadline_ms <= now_ms
            ]
        for do in due:
            do()
        for job, handout in late:
            self._time_out(job, handout)
        self._dispatch()

    def positions(self, position_of: Callable[[TopicPartition], int | None]) -> dict[TopicPartition, int]:
        """What may be committed and was not told before."""
        found = {}
        with self.changed:
            for place, tenure in self._tenures.items():
                if not tenure.ledger.in_hand and (position := position_of(place)) is not None:
                    tenure.ledger.pass_over(position)
                if (news := tenure.ledger.news()) is not None:
                    found[place] = news
        return found

    def take_leave(self, places: Iterable[TopicPartition], patience_s: float) -> dict[TopicPartition, int]:
        """These are given away: what waits is dropped, what is being handled is waited for. What may be committed."""
        with self.changed:
            tenures = [self._tenures[place] for place in places if place in self._tenures]
            self._drop(tenures)
            self.changed.wait_for(lambda: not any(tenure.is_busy for tenure in tenures), patience_s)
            found = {tenure.place: tenure.ledger.committable for tenure in tenures}
            self._forget(tenures)
        return {place: position for place, position in found.items() if position is not None}

    def lose(self, places: Iterable[TopicPartition]) -> None:
        """These are somebody else's: what of them is still at work comes to nothing."""
        with self.changed:
            tenures = [self._tenures[place] for place in places if place in self._tenures]
            self._drop(tenures)
            self._forget(tenures)

    def start_over(self) -> None:
        """Everything in hand is let go; it will be received again."""
        with self.changed:
            places = list(self._tenures)
            self.lose(places)
            self.assign(places)

    def drain(self) -> None:
        """No more handlers are called; what waits is given back."""
        with self.changed:
            self._is_draining = True
            self._drop(list(self._tenures.values()))
            self.changed.notify_all()

    # What the polling thread asks.

    @property
    def in_hand(self) -> int:
        with self.changed:
            return self._strays + sum(len(tenure.entries) for tenure in self._tenures.values())

    @property
    def is_idle(self) -> bool:
        """Nothing is handled, and nothing that was handled is on its way."""
        with self.changed:
            return not self._jobs and not self._strays and not any(each.entries for each in self._tenures.values())

    def places(self) -> set[TopicPartition]:
        with self.changed:
            return set(self._tenures)

    def far_ahead(self) -> set[TopicPartition]:
        with self.changed:
            return {place for place, tenure in self._tenures.items() if tenure.ledger.is_far_ahead}

    @property
    def needs_polling(self) -> bool:
        return self._its_ending().needs_polling

    def wait_for_room(self, most: int, timeout_s: float) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.in_hand < most, timeout_s)

    def sleep_s(self, most_s: float) -> float:
        """How long nothing has to be done, at most so long."""
        now_ms = self.clock.monotonic_ms()
        with self.changed:
            waits_ms = [most_s * 1000]
            if len(self._lanes):
                waits_ms.append(self._rate.wait_ms() or most_s * 1000)
            if (due_ms := self._lanes.next_due_ms()) is not None:
                waits_ms.append(due_ms - now_ms)
            if self._later:
                waits_ms.append(self._later[0][0] - now_ms)
        return max(0.0, min(waits_ms)) / 1000

    # What endings tell.

    def queue(self, entries: Iterable[Entry]) -> None:
        """Their handlers may be called."""
        with self.changed:
            for entry in entries:
                if entry.tenure.ledger.is_ours or self._its_ending().outlives_tenure:
                    self._lanes.add(entry.lane, entry)
            if self._is_draining and not self._its_ending().outlives_tenure:
                self._drop(list(self._tenures.values()))
        self._dispatch()

    def settled(self, entry: Entry) -> None:
        """Nothing is left to be done about it: it counts as read."""
        with self.changed:
            if entry.tenure.ledger.is_ours and entry in entry.tenure.entries:
                entry.tenure.ledger.settle(entry.offset)
            self._leave(entry)

    def dropped(self, entry: Entry) -> None:
        """It is not handled here: whoever has its partition gets it again."""
        with self.changed:
            self._leave(entry)

    def later(self, after_ms: float, do: Callable[[], None]) -> None:
        with self.changed:
            heapq.heappush(self._later, (self.clock.monotonic_ms() + after_ms, next(self._numbers), do))

    # What handlers tell.

    def begin(self, handout: Handout) -> bool:
        with self.changed:
            if not handout.entry.tenure.ledger.is_ours and not self._its_ending().outlives_tenure:
                return False
            handout.began_ms = self.clock.monotonic_ms()
            handout.deadline_ms = handout.began_ms + self.plan.deadline_ms
            return True

    def said(self, handout: Handout, verdict: Verdict) -> None:
        left = self.decide(handout, verdict)
        if left is None:
            raise SettledError(
                f"{handout.message!r} is settled: it was acknowledged, retried or rejected, or timed out"
            )
        if handout.has_claim:
            self.runner.background(left)
        else:
            left()

    def extend(self, handout: Handout, by_ms: int) -> None:
        with self.changed:
            if handout.is_settled:
                raise SettledError(f"{handout.message!r} is settled: its deadline cannot be moved any more")
            handout.deadline_ms = self.clock.monotonic_ms() + by_ms
        if handout.has_claim:
            self.runner.background(lambda: self._claims.extend(handout, by_ms))

    def decide(self, handout: Handout, verdict: Verdict) -> Callable[[], None] | None:
        with self.changed:
            if handout.is_settled:
                return None
            handout.is_settled = True
        return partial(self._conclude, handout, verdict)

    def ended(self, job: Job) -> None:
        with self.changed:
            self._jobs.discard(job)
            for handout in job.handouts:
                handout.entry.is_ended = True
                self._let_lane_go_on(handout.entry)
            self.changed.notify_all()
        self._dispatch()

    # Inside.

    def _conclude(self, handout: Handout, verdict: Verdict) -> None:
        """What was said of a message is done; its business id first, so that nobody repeats what is done."""
        entry = handout.entry
        verdict = self._claims.conclude(handout, verdict)
        fate = fate_of(verdict, failures_of(entry.received.headers), self.plan.retries, self.chance)
        ending = self._its_ending()
        if not entry.tenure.ledger.is_ours and not ending.outlives_tenure:
            with self.changed:
                self._leave(entry)
        elif isinstance(fate, Later) and self.plan.ordered:
            entry.later = fate
            self.hooks.retried(handout.message, fate.error, fate.after_ms)
        else:
            ending.end(handout, verdict, fate)
        with self.changed:
            entry.is_concluded = True
            self._let_lane_go_on(entry)
        self._dispatch()

    def _let_lane_go_on(self, entry: Entry) -> None:
        """Once the handler has returned and what was said is done, the next of the lane may go, or this one again."""
        if not (entry.is_ended and entry.is_concluded):
            return
        if entry.later is None:
            self._lanes.through(entry.lane)
            return
        later, entry.later = entry.later, None
        if entry not in entry.tenure.entries:
            self._lanes.through(entry.lane)
            return
        entry.is_out = entry.is_ended = entry.is_concluded = False
        entry.received = tried_here(entry.received, Message(entry.received), later.failures, later.error)
        if self._is_draining:
            self._leave(entry)
            self._lanes.through(entry.lane)
            return
        self._lanes.again(entry.lane, entry, self.clock.monotonic_ms() + later.after_ms)

    def _dispatch(self) -> None:
        with self.changed:
            now_ms = self.clock.monotonic_ms()
            self._lanes.wake(now_ms)
            while len(self._jobs) < self.plan.concurrency:
                most = self._rate.allowed(now_ms, min(self.plan.batch or 1, len(self._lanes)))
                if not most:
                    return
                entries = self._lanes.take(most)
                self._rate.take(len(entries))
                job = Job([self._hand_out(entry) for entry in entries])
                self._jobs.add(job)
                job.call = self.runner.start(self._handling.steps(job))

    def _hand_out(self, entry: Entry) -> Handout:
        entry.is_out = True
        return Handout(entry, self, self._reply, Collected() if self._its_ending().is_transactional else None)

    def _time_out(self, job: Job, handout: Handout) -> None:
        left = self.decide(handout, Again(f"DeadlineError: not settled within {self.plan.deadline_ms / 1000:g} s"))
        if left is None:
            return
        log.warning(
            "a handler has not settled its message in time",
            extra=fields(group=self.plan.group, message=handout.message, attempt=handout.message.attempt),
        )
        if handout.has_claim:
            self.runner.background(left)
        else:
            left()
        if job.call is not None and all(each.is_settled for each in job.handouts):
            job.call.cancel()

    def _tenure_of(self, received: Received) -> Tenure:
        tenure = self._tenures.get(received.place)
        if tenure is None or not tenure.ledger.fits(received.offset):
            # The reader has gone back: what was handed out comes again, and counts from there.
            self.lose([received.place])
            tenure = self._tenures[received.place] = Tenure(received.place)
        return tenure

    def _lane_of(self, received: Received) -> tuple[str, bytes] | None:
        if not self.plan.ordered or received.key is None:
            return None
        return Message(received).topic, received.key

    def _drop(self, tenures: Sequence[Tenure]) -> None:
        """Forgets what of them waits for a handler."""
        ending, gone = self._its_ending(), set(tenures)
        ending.forget(gone, are_lost=False)
        if not ending.outlives_tenure:
            for entry in self._lanes.drop(lambda entry: entry.tenure in gone):
                self._leave(entry)

    def _forget(self, tenures: Sequence[Tenure]) -> None:
        for tenure in tenures:
            tenure.ledger.is_ours = False
            if self._its_ending().outlives_tenure:
                self._strays += len(tenure.entries)
            else:
                tenure.entries.clear()
            self._tenures.pop(tenure.place, None)
        self._its_ending().forget(set(tenures), are_lost=True)
        self.changed.notify_all()

    def _leave(self, entry: Entry) -> None:
        if entry in entry.tenure.entries:
            entry.tenure.entries.discard(entry)
            if not entry.tenure.ledger.is_ours:
                self._strays -= 1
        self.changed.notify_all()

    def _its_ending(self) -> Ending:
        assert self._ending is not None, "how messages end is known before the first comes"
        return self._ending
