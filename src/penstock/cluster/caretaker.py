"""The controller as an office: one broker of the cluster holds it at a time, and looks after the others.

A shell around the decisions in `care.py`: it stands for election, hears who has a lease, and knows for how long
somebody has been away. Rules:

- Who gets the lease `/leases/controller` is elected, and the epoch in `/controller` rises in the same commit. What it
  decides counts only on an image that names it with that epoch: who was elected before can decide nothing any more.
- For how long somebody has been away it has seen itself or, of the time before its election, reads in the metadata,
  where who is controller notes it: else a cluster whose controllers do not live long would never heal. The last tenth
  of the grace time it sees itself: when a whole cluster starts, those that are away are about to come. For how long the
  load has been uneven it counts anew.
- A lease that has vanished is acted upon at once; everything else at intervals, and only if something has changed or is
  being waited for.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.clock import Clock
from penstock.cluster import care, nodes
from penstock.cluster.controller import Controller
from penstock.cluster.coordination import Change, Coordination, Create, Delete, Unsubscribe
from penstock.cluster.draft import Draft
from penstock.cluster.folder import DataFolder
from penstock.cluster.membership import Membership
from penstock.cluster.metadata import BrokerInfo, MetadataImage
from penstock.config.cluster import ClusterSettings
from penstock.endless import endless
from penstock.errors import ConflictError, CoordinationError
from penstock.ids import BrokerId
from penstock.logs import fields

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_MS = 1_000
LEADERS_AT_ONCE = 100


class Deposed(Exception):
    """Somebody else has been elected."""


class Caretaker:
    """Stands for election on behalf of one broker, and does the controller's work while it is elected."""

    def __init__(
        self,
        broker: BrokerId,
        coordination: Coordination,
        controller: Controller,
        membership: Membership,
        folder: DataFolder,
        settings: ClusterSettings,
        clock: Clock,
        look_ms: int = LOOK_MS,
    ) -> None:
        self._broker = broker
        self._coordination = coordination
        self._controller = controller
        self._membership = membership
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._look_s = look_ms / 1000
        self._limits = care.Limits(settings.moves, LEADERS_AT_ONCE)
        # The names below /leases; None before they were read.
        self._leases: frozenset[str] | None = None
        # Names one stand for election: it changes with the session, to which the lease belongs.
        self._start = uuid.uuid4().hex
        self._is_candidate = True
        # The controller epoch while this broker is elected.
        self._epoch: int | None = None
        # Since when those are away that are, in monotonic time, by the registration that has ended.
        self._away_since_ms: dict[tuple[BrokerId, int], float] = {}
        self._uneven_since_ms: float | None = None
        self._leases_due, self._image_due = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: list[Unsubscribe] = []

    @property
    def epoch(self) -> int | None:
        """The controller epoch of this broker; None while it is not the controller."""
        return self._epoch

    async def start(self) -> None:
        """Returns when this broker knows of a controller: itself, or one that was there before."""
        self._leases = frozenset(await self._coordination.children(nodes.LEASES))
        self._unsubscribe = [
            self._coordination.watch_children(nodes.LEASES, self._take_leases),
            self._coordination.on_session_lost(self._lose),
            self._controller.subscribe(self._take_image),
        ]
        await self._stand()
        if self._epoch is None:
            # The office is taken: the image that says by whom is there, its watch may be on the way.
            await self._controller.refresh()
        self._leases_due.set()
        self._image_due.set()
        self._tasks = [
            asyncio.create_task(endless("leases", self._guard), name="penstock-caretaker-leases"),
            asyncio.create_task(endless("controller", self._tidy), name="penstock-caretaker"),
        ]

    async def resign(self) -> None:
        """Gives the office up, so that nobody waits for the end of its lease."""
        self._is_candidate = False
        if self._epoch is None or self._controller.image.alive <= {self._broker}:
            return
        self._resign_office()
        try:
            await self._coordination.commit(Delete(nodes.CONTROLLER_LEASE, 0))
        except CoordinationError as error:
            log.warning("the office of the controller is left to end with its lease", extra=fields(reason=str(error)))

    async def close(self) -> None:
        """A lease that is still held is left to the end of the session, which follows."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._epoch = None

    def _take_leases(self, names: Sequence[str]) -> None:
        self._leases = frozenset(names)
        self._leases_due.set()

    def _take_image(self, old: MetadataImage, new: MetadataImage) -> None:
        self._leases_due.set()
        self._image_due.set()

    def _lose(self) -> None:
        self._resign_office()
        self._start = uuid.uuid4().hex
        self._leases_due.set()

    def _resign_office(self) -> None:
        self._epoch = None
        self._away_since_ms.clear()
        self._uneven_since_ms = None

    async def _guard(self) -> None:
        await self._leases_due.wait()
        self._leases_due.clear()
        try:
            await self._stand()
            await self._bury_missing()
        except Deposed:
            self._resign_office()
        except ConflictError as error:
            # A lease is not as it was told; news of it is on the way.
            log.info("the controller decides again", extra=fields(reason=str(error)))
        except CoordinationError as error:
            log.warning("the controller cannot act, trying again", extra=fields(reason=str(error)))
            await asyncio.sleep(self._look_s)
            self._leases_due.set()
        except Exception:
            self._leases_due.set()
            raise

    async def _stand(self) -> None:
        """Takes the office if it is free."""
        if self._epoch is not None or self._membership.epoch is None or not self._is_candidate:
            return
        path, start = nodes.CONTROLLER_LEASE, self._start
        lease = Create(path, nodes.encode_lease(self._folder.holder, start), leased=True)
        taken: list[Change] = [lease]
        if self._leases is not None and path.rpartition("/")[2] in self._leases:
            held = await self._coordination.get(path)
            if held is not None:
                folder, its_start = nodes.decode_lease(path, held.value)
                if folder != self._folder.holder:
                    return
                if its_start == start:
                    # A commit whose answer was lost has taken place.
                    self._take_office((await self._controller.refresh()).controller_epoch, start)
                    return
                # It was left behind by a former process of this broker.
                taken.insert(0, Delete(path, held.version))

        def decide(draft: Draft) -> int:
            epoch = draft.controller[1] + 1
            draft.put_controller(self._broker, epoch)
            draft.beside.extend(taken)
            return epoch

        try:
            self._take_office(await self._controller.change(decide), start)
        except ConflictError:
            log.debug("another broker is the controller")

    def _take_office(self, epoch: int, start: str) -> None:
        # A session that was lost meanwhile has taken the lease with it.
        if start == self._start:
            self._epoch = epoch
            self._image_due.set()
            log.info("this broker is the controller", extra=fields(id=self._broker, epoch=epoch))

    async def _bury_missing(self) -> None:
        if self._epoch is None or self._leases is None:
            return
        present = nodes.brokers_with_lease(self._leases) | {self._broker}
        missing = self._controller.image.alive - present
        if not missing:
            return
        dead = await self._change(lambda draft: care.bury_missing(draft, missing, self._controller.is_unclean(draft)))
        if dead:
            log.warning("brokers are gone, others lead what they led", extra=fields(brokers=dead))

    async def _tidy(self) -> None:
        await self._image_due.wait()
        self._image_due.clear()
        waits = True
        try:
            waits = await self._look()
        except Deposed:
            self._resign_office()
            waits = False
        except CoordinationError as error:
            log.warning("the controller cannot act, trying again", extra=fields(reason=str(error)))
        finally:
            if waits:
                self._image_due.set()
        await asyncio.sleep(self._look_s)

    async def _look(self) -> bool:
        """Does what is due; whether something will be, by the clock alone."""
        if self._epoch is None:
            return False
        image = self._controller.image
        now_ms = self._clock.monotonic_ms()
        wall_ms = self._clock.now_ms()
        away = [broker for broker in image.brokers.values() if not broker.is_alive]
        self._away_since_ms = {
            (broker.id, broker.epoch): self._away_since_ms.get(
                (broker.id, broker.epoch), now_ms - self._known_to_be_away_ms(broker, wall_ms)
            )
            for broker in away
        }
        gone = {id for (id, _), ms in self._away_since_ms.items() if now_ms - ms >= self._settings.heal_after_ms}
        if care.even_out(Draft(image), min(1, self._limits.moves)) == 0:
            self._uneven_since_ms = None
        elif self._uneven_since_ms is None:
            self._uneven_since_ms = now_ms
        since_ms = self._uneven_since_ms
        may_even = since_ms is not None and now_ms - since_ms >= self._settings.balance_after_ms

        def decide(draft: Draft) -> None:
            care.note_absences(draft, wall_ms)
            care.tidy(draft, gone, self._limits, self._controller.is_unclean(draft), may_even=may_even)

        probe = Draft(image)
        decide(probe)
        if probe.is_touched:
            await self._change(decide)
        return len(gone) < len(away) or (since_ms is not None and not may_even)

    def _known_to_be_away_ms(self, broker: BrokerInfo, wall_ms: int) -> int:
        """For how long, as the controller before this one has noted it, whose clock may have been another one."""
        since_ms = wall_ms if broker.away_since_ms is None else broker.away_since_ms
        return min(max(0, wall_ms - since_ms), self._settings.heal_after_ms * 9 // 10)

    async def _change(self, decide: Callable[[Draft], T]) -> T:
        """A change that only the controller makes."""
        epoch = self._epoch

        def as_controller(draft: Draft) -> T:
            if epoch is None or draft.controller != (self._broker, epoch):
                raise Deposed
            return decide(draft)

        return await self._controller.change(as_controller)
