"""The transaction coordinator: the shell around the state machine. It appends decisions, writes markers, and answers.

Rules:
- A decision is appended before it is applied or answered.
- A decided transaction is completed: markers are retried until all are written, also after a restart.
- Requests that arrive while a transaction completes wait for it, at most `marker_wait_ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.cluster.decisions.topics import TopicCreation
from penstock.cluster.metadata import TRANSACTIONS_TOPIC
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.config.broker import TransactionSettings
from penstock.errors import ApiError, Code, StorageError
from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.replication.damage_repair import DamageRepair
from penstock.replication.lost_records import LostRange
from penstock.replication.replicas import Replicas
from penstock.replication.shards import STATE_TOPIC_SETTINGS, LoadedShard, Shards
from penstock.replication.transaction_marker import TransactionMarker
from penstock.transactions import state_machine
from penstock.transactions.producer_ids import ProducerIds
from penstock.transactions.records import decode, encode, name_of
from penstock.transactions.shard import TransactionRules, TransactionShard
from penstock.transactions.state import NO_ID, Status, TransactionRecord, TransactionState
from penstock.transactions.state_machine import Decision, Producer

logger = logging.getLogger(__name__)

_DECISIONS = {
    None: "forgotten: its producer has to begin anew, and a transaction that is still open has to be aborted by hand",
    Status.PREPARE_ABORT: "aborted: its producer has to begin anew",
    Status.PREPARE_COMMIT: "committed, as it was decided: its producer has to begin anew",
}

_TICK_S = 0.25
_EXPIRY_S = 600.0
_RETRY_S = 0.2

WriteMarker = Callable[[TopicPartition, TransactionMarker], Awaitable[None]]
Decide = Callable[[TransactionState | None, int | None, int], Decision]
"""State, a fresh producer id if the caller requested one, time."""


@dataclass(slots=True)
class TransactionCounts:
    """Counts of transactions of this broker since its start, for /metrics."""

    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
    """Of those that were aborted."""
    markers_pending: int = 0
    """Markers of decided transactions that are not written yet."""


class TransactionCoordinator:
    """All transactional ids of this broker."""

    def __init__(
        self,
        metadata: MetadataChanges,
        replicas: Replicas,
        settings: TransactionSettings,
        clock: Clock,
        producer_ids: ProducerIds,
        write_marker: WriteMarker,
        repair: DamageRepair,
    ) -> None:
        self._producer_ids = producer_ids
        self._write_marker = write_marker
        self._wait_s = settings.marker_wait_ms / 1000
        self._rules = TransactionRules(
            max_timeout_ms=settings.max_timeout_ms,
            id_expiry_ms=settings.id_expiry_ms,
            max_ids=settings.ids_per_partition,
            max_partitions=settings.partitions_per_transaction,
        )
        self._shards = Shards(
            TopicCreation(
                name=TRANSACTIONS_TOPIC, partitions=settings.state_partitions, overrides=STATE_TOPIC_SETTINGS
            ),
            metadata,
            replicas,
            clock,
            make=lambda: TransactionShard(self._rules),
            load=self._load,
            lost=self._lost,
            adopted=self._keep_time,
            repair=repair,
        )
        self._completing: dict[str, asyncio.Task[None]] = {}
        self.counts = TransactionCounts()

    @property
    def lost_ranges(self) -> int:
        """Damaged parts of the internal topic that shards were loaded without."""
        return self._shards.lost_ranges

    async def start(self) -> None:
        """Loads the shards that this broker has, and completes what was decided before it stopped."""
        await self._shards.adopt()

    def release(self) -> None:
        """The broker is about to stop."""
        self._shards.release()

    async def close(self) -> None:
        await self._shards.close()

    def look(self) -> None:
        """Begins to load the shards that this broker leads."""
        self._shards.look()

    async def prepare(self) -> int:
        """Makes sure that the internal topic is there; gives its number of partitions."""
        return await self._shards.prepare()

    async def init(self, name: str, expected: Producer, timeout_ms: int) -> Decision:
        """A producer begins: the decision has its id and epoch."""
        if not 0 < timeout_ms <= self._rules.max_timeout_ms:
            return Decision(code=Code.INVALID_TRANSACTION_TIMEOUT)
        loaded = await self._shards.of(name)
        if not loaded.state.has_room_for(name):
            return Decision(code=Code.POLICY_VIOLATION)
        return await self._decide(
            loaded, name, lambda state, fresh, now: state_machine.init(state, expected, timeout_ms, fresh, now)
        )

    async def add_partitions(
        self, name: str, producer: Producer, partitions: Iterable[TopicPartition], version: int
    ) -> Code:
        """`version`: that of the transaction protocol which the request belongs to."""
        wanted = frozenset(partitions)
        limit = self._rules.max_partitions
        decision = await self._decide(
            await self._shards.of(name),
            name,
            lambda state, _, now: state_machine.add_partitions(state, producer, wanted, limit, version, now),
        )
        return decision.code

    async def verify(
        self, name: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Code]:
        """Whether these partitions are in the producer's transaction."""
        shard = (await self._shards.of(name)).state
        return state_machine.verify(shard.states.get(name), producer, partitions)

    async def end(self, name: str, producer: Producer, version: int, *, commits: bool) -> Decision:
        """Commits or aborts; the decision has the id and the epoch that the producer goes on with."""
        decision = await self._decide(
            await self._shards.of(name),
            name,
            lambda state, fresh, now: state_machine.end(state, producer, version, fresh, now, commits=commits),
        )
        if decision.state is not None:
            await self._settled(name, self._wait_s)
        return decision

    async def find(self, name: str) -> TransactionState | None:
        return (await self._shards.of(name)).state.states.get(name)

    def states(self) -> Iterator[tuple[str, TransactionState]]:
        for loaded in self._shards:
            yield from loaded.state.states.items()

    def shards(self) -> Iterator[TransactionShard]:
        """Those that are here."""
        return (loaded.state for loaded in self._shards)

    @property
    def is_loading(self) -> bool:
        return any(not loaded.is_loaded for loaded in self._shards)

    def now_ms(self) -> int:
        return self._shards.now_ms()

    async def _decide(self, loaded: LoadedShard[TransactionShard], name: str, decide: Decide) -> Decision:
        """Decides in the shard's turn; while a transaction is being completed there is nothing to decide."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_s

        async def work(shard: TransactionShard) -> Decision:
            state = shard.states.get(name)
            decision = decide(state, None, self._shards.now_ms())
            if decision.wants_producer_id:
                decision = decide(state, await self._producer_ids.next(), self._shards.now_ms())
            if decision.state is not None:
                await self._write(loaded, [TransactionRecord(name, decision.state)])
            return decision

        while True:
            decision = await self._shards.change(loaded, work, f"change of {name}")
            if decision.code is not Code.CONCURRENT_TRANSACTIONS:
                return decision
            if not await self._settled(name, deadline - loop.time()):
                return decision

    async def _settled(self, name: str, seconds: float) -> bool:
        """Waits until a transaction that is being completed is complete; False if that takes longer."""
        completing = self._completing.get(name)
        if completing is None:
            return True
        await asyncio.wait({completing}, timeout=max(0.0, seconds))
        return completing.done() and not self._shards.is_stopping

    async def _write(self, loaded: LoadedShard[TransactionShard], records: list[TransactionRecord]) -> None:
        """Appends, takes in, and sees to what follows; the caller has the turn."""
        if not records:
            return
        try:
            await loaded.log.append([encode(record) for record in records])
        except (ApiError, StorageError) as error:
            # The shards log it if another broker leads by now, and clients learn it from their next request.
            level = logging.ERROR if isinstance(error, StorageError) else logging.DEBUG
            logger.log(level, "transaction change not written", extra=fields(error=str(error)))
            raise ApiError(Code.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        for record in records:
            loaded.state.apply(record)
            if record.state is not None and record.state.status.is_decided:
                self._count(record.state)
                self._begin_to_complete(loaded, record.transactional_id)

    def _count(self, decided: TransactionState) -> None:
        # A producer may abort without having begun, for another epoch.
        if decided.partitions:
            if decided.status is Status.PREPARE_COMMIT:
                self.counts.committed += 1
            else:
                self.counts.aborted += 1

    def _begin_to_complete(self, loaded: LoadedShard[TransactionShard], name: str) -> None:
        task = self._shards.spawn(self._complete(loaded, name), f"complete {name}")
        self._completing[name] = task

        def done(_: asyncio.Task[None]) -> None:
            if self._completing.get(name) is task:
                del self._completing[name]

        task.add_done_callback(done)

    async def _complete(self, loaded: LoadedShard[TransactionShard], name: str) -> None:
        """Writes the markers of a transaction that is decided, until all of them are there, and then that they are."""
        state = loaded.state.states[name]
        marker = TransactionMarker(
            state.producer_id,
            state.producer_epoch,
            state.status is Status.PREPARE_COMMIT,
            loaded.log.partition.leader_epoch,
        )

        async def complete(shard: TransactionShard) -> None:
            done = state_machine.completed(state, self._shards.now_ms())
            await self._write(loaded, [TransactionRecord(name, done)])

        missing = sorted(state.partitions)
        self.counts.markers_pending += len(missing)
        try:
            while not self._shards.is_stopping:
                written = await asyncio.gather(*(self._mark(at, marker) for at in missing))
                self.counts.markers_pending -= sum(written)
                missing = [at for at, is_written in zip(missing, written, strict=True) if not is_written]
                try:
                    if not missing:
                        await self._shards.change(loaded, complete, f"completion of {name}")
                        return
                except ApiError as error:
                    if error.code is Code.NOT_COORDINATOR:
                        return
                await asyncio.sleep(_RETRY_S)
        finally:
            # Those that are left are another coordinator's.
            self.counts.markers_pending -= len(missing)

    async def _mark(self, at: TopicPartition, marker: TransactionMarker) -> bool:
        """Writes one marker; False if it has to be tried again."""
        try:
            await self._write_marker(at, marker)
        except ApiError as error:
            # The topic was deleted, or the log has seen a later epoch, which exists only once this one is complete.
            if error.code in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_PRODUCER_EPOCH):
                return True
            logger.warning("marker not written yet", extra=fields(log=str(at), reason=str(error)))
            return False
        except StorageError as error:
            logger.warning("marker not written yet", extra=fields(log=str(at), reason=str(error)))
            return False
        return True

    def _lost(self, shard: TransactionShard) -> None:
        """Another broker completes what is decided there; here the completion stops."""
        for name in shard.states:
            completing = self._completing.pop(name, None)
            if completing is not None:
                completing.cancel()

    def _keep_time(self) -> None:
        self._shards.every(
            _TICK_S, lambda shard: shard.is_due(self._shards.now_ms()), self._end_what_is_over, "transaction timeouts"
        )
        self._shards.every(_EXPIRY_S, lambda shard: True, self._expire, "expiry of transactional ids")

    async def _end_what_is_over(self, loaded: LoadedShard[TransactionShard]) -> None:
        records = loaded.state.overdue(self._shards.now_ms())
        await self._write(loaded, records)
        self.counts.timed_out += len(records)
        for record in records:
            logger.info(
                "aborted a transaction: it exceeded its timeout", extra=fields(transactional_id=record.transactional_id)
            )

    async def _expire(self, loaded: LoadedShard[TransactionShard]) -> None:
        await self._write(loaded, list(loaded.state.expired(self._shards.now_ms())))

    async def _load(self, loaded: LoadedShard[TransactionShard]) -> None:
        async for batch in loaded.log.replay():
            if isinstance(batch, LostRange):
                names = [name_of(key) for key in batch.keys]
                known = {name for name in names if name is not None}
                loaded.state.lose(known, are_all=batch.is_complete and None not in names)
                self._shards.report_lost(loaded, batch, known)
                continue
            for record in batch.records:
                change = decode(record)
                if change is not None:
                    loaded.state.apply(change)
        loaded.state.loaded(self._shards.now_ms())
        await self._settle_doubts(loaded)
        loaded.is_loaded = True
        for name in loaded.state.undone():
            if name not in self._completing:
                self._begin_to_complete(loaded, name)

    async def _settle_doubts(self, loaded: LoadedShard[TransactionShard]) -> None:
        """Decides about the ids whose last record may be lost, and writes that down: once the damage is gone, nothing
        would tell any more that their state is not to be believed.
        """
        records = []
        for name in sorted(loaded.state.in_doubt):
            before = loaded.state.states[name]
            fresh = await self._producer_ids.next() if before.status is Status.PREPARE_COMMIT else NO_ID
            after = state_machine.after_loss(before, fresh, self._shards.now_ms())
            records.append(TransactionRecord(name, after))
            logger.critical(
                "the last state of a transactional id may be lost",
                extra=fields(
                    transactional_id=name,
                    producer_id=before.producer_id,
                    producer_epoch=before.producer_epoch,
                    last_known=before.status.shown,
                    partitions=", ".join(map(str, sorted(before.partitions))),
                    decision=_DECISIONS[None if after is None else after.status],
                ),
            )
        await self._write(loaded, records)
