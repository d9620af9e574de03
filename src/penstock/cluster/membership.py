"""A broker's membership in the cluster: its lease, its registration, and the end of both.

See "Leases" in `docs/internals/cluster.md`. Rules:

- A broker is a member from the commit that registers it, which also takes its lease, to the end of its session. Only in
  between may it lead and follow, whatever the metadata says of an earlier registration.
- After a lost session the broker registers again, as after a restart; but it still has what is in memory and on disk.
- If another process holds the lease, the broker waits for it to expire, but no longer than a lease lasts. A lease whose
  process held this data folder's lock before is taken at once: that process is gone.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.background_loop import run_forever
from penstock.cluster import nodes
from penstock.cluster.coordination.contract import Change, Check, Coordination, Create, Delete
from penstock.cluster.decisions import elections
from penstock.cluster.folder import DataFolder
from penstock.cluster.metadata import BrokerInfo, MetadataImage
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.address import Address
from penstock.errors import ConfigError, ConflictError, CoordinationError
from penstock.ids import BrokerId
from penstock.logs import fields

log = logging.getLogger(__name__)

_RETRY_S = 1.0
# ZooKeeper may have granted another process a longer session than it requested, and ends it in steps of a tick.
_WAIT_FACTOR = 2


class Membership:
    """Registers one broker and keeps it registered until it resigns or is closed."""

    def __init__(
        self, coordination: Coordination, metadata: MetadataChanges, folder: DataFolder, lease_ms: int
    ) -> None:
        self._coordination = coordination
        self._metadata = metadata
        self._folder = folder
        self._lease_ms = lease_ms
        self._info: BrokerInfo | None = None
        # Of this broker, as long as it is a member.
        self._epoch: int | None = None
        # The version of the image that this broker acts on.
        self._seen = -1
        self._is_leaving = False
        self._sessions_lost = 0
        self._lost = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._unsubscribe = coordination.on_session_lost(self._lose)
        self._unsubscribe_from_images = metadata.subscribe(self._image_changed)

    @property
    def epoch(self) -> int | None:
        """The broker epoch of this registration; None while this broker is not a member."""
        return self._epoch

    def lease_until_ms(self) -> float:
        """Until when, in monotonic time, this broker is certainly a member, and no other leads what it leads."""
        if self._epoch is None or self._is_leaving:
            return -math.inf
        return self._coordination.lease_until_ms(self._seen)

    def _image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        self._seen = new.version

    async def join(self, info: BrokerInfo) -> None:
        """Returns when this broker is a member; a ConfigError if another process is the broker of that id."""
        self._info = info
        self._seen = self._metadata.image.version
        is_whole = self._folder.begin_life()
        while not await self._register(is_start=True, is_whole=is_whole):
            log.info("lost the session during registration, retrying")
        if not is_whole:
            self._folder.be_whole()
        self._keeping = asyncio.create_task(run_forever("membership", self._keep), name="penstock-membership")

    async def step_down(self) -> bool:
        """Leaves what this broker leads to others, as far as there are any; whether there are."""
        await self._stop_keeping()
        # Others may lead as soon as the commit is sent, long before its answer is here.
        self._is_leaving = True
        if self._epoch is None:
            self._coordination.stop_waiting()
            return False
        assert self._info is not None
        me = self._info.id

        def decide(draft: MetadataDraft) -> bool:
            if me not in draft.alive or draft.alive == {me}:
                return False
            elections.step_down(draft, me)
            return True

        try:
            return await self._metadata.change(decide)
        except CoordinationError as error:
            log.warning("cannot hand leadership over", extra=fields(reason=str(error)))
            # All that follows of the stop would wait for as long again.
            self._coordination.stop_waiting()
            return False

    async def resign(self) -> None:
        """Leaves in an orderly way: hands over what this broker still leads, and deletes its lease."""
        await self._stop_keeping()
        self._is_leaving = True
        if self._epoch is None:
            return
        assert self._info is not None
        me = self._info.id

        def decide(draft: MetadataDraft) -> None:
            info = draft.brokers.get(me)
            # The last broker has no other to hand over to.
            if info is None or not info.is_alive or draft.alive == {me}:
                return
            elections.resign(draft, me)
            draft.beside.append(Delete(nodes.lease_path(me), 0))

        try:
            await self._metadata.change(decide)
        except CoordinationError as error:
            log.warning("cannot deregister this broker, leaving its lease to expire", extra=fields(reason=str(error)))
        self._epoch = None

    async def close(self) -> None:
        self._unsubscribe()
        self._unsubscribe_from_images()
        await self._stop_keeping()
        self._epoch = None

    def _lose(self) -> None:
        self._epoch = None
        self._sessions_lost += 1
        self._lost.set()

    async def _stop_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
            self._keeping = None

    async def _keep(self) -> None:
        await self._lost.wait()
        self._lost.clear()
        is_member = False
        try:
            is_member = await self._register(is_start=False, is_whole=True)
        except (CoordinationError, ConfigError) as error:
            log.warning("cannot rejoin the cluster, retrying", extra=fields(reason=str(error)))
            await asyncio.sleep(_RETRY_S)
        finally:
            if not is_member:
                self._lost.set()

    async def _register(self, *, is_start: bool, is_whole: bool) -> bool:
        """Whether the broker is a member now; if not, its session was lost meanwhile."""
        assert self._info is not None
        info, path = self._info, nodes.lease_path(self._info.id)
        start = uuid.uuid4().hex
        lease = Create(path, nodes.encode_lease(self._folder.holder, start), leased=True)
        sessions_lost = self._sessions_lost
        while True:
            held = await self._coordination.get(path)
            if held is not None:
                folder, its_start = nodes.decode_lease(path, held.value)
                if its_start == start:
                    # A commit whose answer was lost has taken place.
                    epoch = (await self._metadata.refresh()).brokers[info.id].epoch
                    break
                if folder != self._folder.holder:
                    await self._wait_for_the_end_of(path)
                    continue
            try:
                if not is_whole:
                    expected: list[Change] = [Create(path, b""), Delete(path, 0)]
                    if held is not None:
                        expected = [Check(path, held.version)]
                    await self._metadata.change(self._leaving_in_sync_sets(info.id, expected))
                taken: list[Change] = [lease] if held is None else [Delete(path, held.version), lease]
                epoch = await self._metadata.change(self._coming(info, taken, is_start))
                break
            except ConflictError as error:
                log.info("broker lease changed during registration, retrying", extra=fields(reason=str(error)))
        if sessions_lost != self._sessions_lost:
            return False
        self._epoch = epoch
        log.info("joined the cluster", extra=fields(id=info.id, epoch=epoch))
        return True

    def _leaving_in_sync_sets(self, me: BrokerId, expected: Sequence[Change]) -> Callable[[MetadataDraft], None]:
        """This broker has lost records: other in-sync replicas go before it, and what was known of its log is void.

        This is committed before it comes back: what does not fit into one commit is made in parts, and between them it
        must not be elected for what it has lost.
        """

        def decide(draft: MetadataDraft) -> None:
            former = draft.brokers.get(me)
            if former is None:
                return
            draft.put_broker(replace(former, is_alive=False))
            elections.welcome(draft, me, has_all=False, is_unclean=self._metadata.is_unclean(draft))
            draft.conditions.extend(expected)

        return decide

    def _coming(self, info: BrokerInfo, taken: Sequence[Change], is_start: bool) -> Callable[[MetadataDraft], int]:
        def decide(draft: MetadataDraft) -> int:
            former = draft.brokers.get(info.id)
            epoch = 1 if former is None else former.epoch + 1
            draft.put_broker(replace(info, is_alive=True, epoch=epoch))
            # What was in the memory of a former process is gone, and that of this one is not.
            keeps = self._metadata.keeps(draft) if is_start else lambda topic: True
            is_unclean = self._metadata.is_unclean(draft)
            elections.welcome(draft, info.id, has_all=True, is_unclean=is_unclean, keeps=keeps)
            draft.beside.extend(taken)
            return epoch

        return decide

    async def _wait_for_the_end_of(self, path: str) -> None:
        assert self._info is not None
        name = path.rpartition("/")[2]
        is_over = asyncio.Event()

        def look(names: Sequence[str]) -> None:
            if name not in names:
                is_over.set()

        log.info("another process holds this broker's lease, waiting for it to expire", extra=fields(id=self._info.id))
        unwatch = self._coordination.watch_children(nodes.LEASES, look)
        try:
            async with asyncio.timeout(_WAIT_FACTOR * self._lease_ms / 1000):
                await is_over.wait()
        except TimeoutError:
            other = self._metadata.image.brokers.get(self._info.id)
            where = "" if other is None else f" at {Address(other.host, other.port)}"
            raise ConfigError(
                f"broker.id = {self._info.id}: another broker of this cluster{where} runs under that number"
            ) from None
        finally:
            unwatch()
