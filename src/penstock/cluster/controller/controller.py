"""The elected controller: one broker of the cluster at a time, which looks after the others.

A shell around the decisions in `maintenance.py`: it stands for election, watches the leases, and knows for how long a
broker has been away. Rules:

- The broker that gets the lease `/leases/controller` is elected, and raises the epoch in `/controller` in the same
  commit. Its decisions count only on an image that names it with that epoch, so a former controller can decide nothing.
- The controller notes in the metadata since when a broker has been away, and its successor reads it there: else a
  cluster whose controllers do not live long would never heal. Each controller waits for the last tenth of the grace
  time itself: when a whole cluster starts, the brokers that are away are about to come. Each controller measures for
  itself for how long the load has been uneven.
- The controller acts at once on a lease that has vanished. Everything else it does at intervals, and only if something
  has changed or is being waited for.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.background_loop import run_forever
from penstock.clock import Clock
from penstock.cluster import nodes
from penstock.cluster.controller import maintenance
from penstock.cluster.coordination.contract import Change, Coordination, Create, Delete, Unsubscribe
from penstock.cluster.folder import DataFolder
from penstock.cluster.membership import Membership
from penstock.cluster.metadata import BrokerInfo, MetadataImage
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.cluster.metadata_store import is_large, spare_the_loop
from penstock.config.cluster import ClusterSettings
from penstock.errors import ConflictError, CoordinationError
from penstock.ids import BrokerId
from penstock.logs import fields

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_MS = 1_000
LEADERS_AT_ONCE = 100


class Deposed(Exception):
    """Another broker has been elected."""


class Controller:
    """Stands for election on behalf of one broker, and does the controller's work while it is elected."""

    def __init__(
        self,
        broker: BrokerId,
        coordination: Coordination,
        metadata: MetadataChanges,
        membership: Membership,
        folder: DataFolder,
        settings: ClusterSettings,
        clock: Clock,
        look_ms: int = LOOK_MS,
    ) -> None:
        self._broker = broker
        self._coordination = coordination
        self._metadata = metadata
        self._membership = membership
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._look_s = look_ms / 1000
        self._limits = maintenance.MaintenanceLimits(settings.moves, LEADERS_AT_ONCE)
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
            self._metadata.subscribe(self._take_image),
        ]
        await self._stand()
        if self._epoch is None:
            # The office is taken: the image that says by whom is there, its watch may be on the way.
            await self._metadata.refresh()
        self._leases_due.set()
        self._image_due.set()
        self._tasks = [
            asyncio.create_task(run_forever("leases", self._guard), name="penstock-controller-leases"),
            asyncio.create_task(run_forever("controller", self._tidy), name="penstock-controller"),
        ]

    async def resign(self) -> None:
        """Resigns, so that no broker has to wait for the lease to expire."""
        self._is_candidate = False
        if self._epoch is None or self._metadata.image.alive <= {self._broker}:
            return
        self._resign_office()
        try:
            await self._coordination.commit(Delete(nodes.CONTROLLER_LEASE, 0))
        except CoordinationError as error:
            log.warning("cannot resign as controller, leaving the lease to expire", extra=fields(reason=str(error)))

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
            log.info("a controller decision conflicted, retrying", extra=fields(reason=str(error)))
        except CoordinationError as error:
            log.warning("controller work failed, retrying", extra=fields(reason=str(error)))
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
                    self._take_office((await self._metadata.refresh()).controller_epoch, start)
                    return
                # It was left behind by a former process of this broker.
                taken.insert(0, Delete(path, held.version))

        def decide(draft: MetadataDraft) -> int:
            epoch = draft.controller[1] + 1
            draft.put_controller(self._broker, epoch)
            draft.beside.extend(taken)
            return epoch

        try:
            self._take_office(await self._metadata.change(decide), start)
        except ConflictError:
            log.debug("another broker was elected controller")

    def _take_office(self, epoch: int, start: str) -> None:
        # A session that was lost meanwhile has taken the lease with it.
        if start == self._start:
            self._epoch = epoch
            self._image_due.set()
            log.info("this broker was elected controller", extra=fields(id=self._broker, epoch=epoch))

    async def _bury_missing(self) -> None:
        if self._epoch is None or self._leases is None:
            return
        present = nodes.brokers_with_lease(self._leases) | {self._broker}
        missing = self._metadata.image.alive - present
        if not missing:
            return
        dead = await self._change(
            lambda draft: maintenance.bury_missing(draft, missing, self._metadata.is_unclean(draft))
        )
        if dead:
            log.warning("brokers have lost their leases, elected other leaders", extra=fields(brokers=dead))

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
            log.warning("controller work failed, retrying", extra=fields(reason=str(error)))
        finally:
            if waits:
                self._image_due.set()
        await asyncio.sleep(self._look_s)

    async def _look(self) -> bool:
        """Does what is due; whether something will be, by the clock alone."""
        if self._epoch is None:
            return False
        epoch, image = self._epoch, self._metadata.image
        is_long = is_large(image)
        is_even = await spare_the_loop(
            lambda: maintenance.even_out(MetadataDraft(image), min(1, self._limits.moves)) == 0, is_long=is_long
        )
        if self._epoch != epoch:
            return True
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
        if is_even:
            self._uneven_since_ms = None
        elif self._uneven_since_ms is None:
            self._uneven_since_ms = now_ms
        since_ms = self._uneven_since_ms
        may_even = since_ms is not None and now_ms - since_ms >= self._settings.balance_after_ms

        def decide(draft: MetadataDraft) -> None:
            maintenance.note_absences(draft, wall_ms)
            maintenance.tidy(draft, gone, self._limits, self._metadata.is_unclean(draft), may_even=may_even)

        probe = MetadataDraft(image)
        await spare_the_loop(lambda: decide(probe), is_long=is_long)
        if probe.is_touched:
            await self._change(decide)
        return len(gone) < len(away) or (since_ms is not None and not may_even)

    def _known_to_be_away_ms(self, broker: BrokerInfo, wall_ms: int) -> int:
        """For how long, as the controller before this one has noted it, whose clock may have been another one."""
        since_ms = wall_ms if broker.away_since_ms is None else broker.away_since_ms
        return min(max(0, wall_ms - since_ms), self._settings.heal_after_ms * 9 // 10)

    async def _change(self, decide: Callable[[MetadataDraft], T]) -> T:
        """A change that only the controller makes."""
        epoch = self._epoch

        def as_controller(draft: MetadataDraft) -> T:
            if epoch is None or draft.controller != (self._broker, epoch):
                raise Deposed
            return decide(draft)

        return await self._metadata.change(as_controller)
