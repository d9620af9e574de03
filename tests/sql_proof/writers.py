"""Those who append to the partition: producers of a broker, and those who use the tables."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import count

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.config.database_address import DatabaseAddress
from penstock.sql.database import Connection, Database
from penstock.sql.errors import DatabaseError
from support.pulse import PATIENT
from support.waiting import PATIENCE_S

from .ledger import Ledger, value_of

TOPIC = "ledger"
TABLE = f"{TOPIC}_0"
_STATEMENT_MS = 8_000
_AWAY_S = 0.2
_FLUSH_S = 4 * PATIENCE_S


class Writer(threading.Thread):
    """Writes its numbers, one after the other, from `start` to `stop`."""

    def __init__(self, number: int, seed: int) -> None:
        super().__init__(name=f"writer {number}")
        self.ledger = Ledger()
        self.failure = ""
        """Why it writes no more."""
        self._values = (value_of(number, each) for each in count())
        self._chance = random.Random(f"{seed} {number}")
        self._stop_asked = threading.Event()

    def ask_to_stop(self) -> None:
        self._stop_asked.set()

    def stop(self) -> None:
        """Returns when the fate of everything is known, or known to be unknown."""
        self.ask_to_stop()
        self.join()


class ProducerWriter(Writer):
    """Idempotent, acks=all."""

    def __init__(self, number: int, seed: int, bootstrap: str, topic: str = TOPIC, key: str | None = None) -> None:
        super().__init__(number, seed)
        self._brokers = bootstrap
        self._topic = topic
        self._key = key

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self._brokers, **PATIENT})
        while not self._stop_asked.is_set():
            for _ in range(self._chance.choice((1, 1, 2, 5))):
                value = next(self._values)
                try:
                    producer.produce(
                        self._topic, str(value), self._key, partition=0, on_delivery=partial(self._told, value)
                    )
                except KafkaException as error:
                    self.failure = f"{self.name} can write no more: {error}"
                    return
            producer.poll(0)
            self._stop_asked.wait(self._chance.uniform(0.02, 0.3))
        producer.flush(_FLUSH_S)

    def _told(self, value: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.ledger.acknowledged[value] = (0, message.offset())
        else:
            self.ledger.unknown.add(value)


class _RollBackError(Exception):
    pass


class DirectWriter(Writer):
    """Appends by hand, as `docs/internals/sql.md` describes it: ids are counted up under the lock of the queue's row,
    in the transaction of the rows. Waits with the lock, and commits or rolls back.
    """

    def __init__(self, number: int, seed: int, address: DatabaseAddress) -> None:
        super().__init__(number, seed)
        self._address = address

    def run(self) -> None:
        asyncio.run(self._write())

    async def _write(self) -> None:
        database = await Database.open(self._address, connections=1, timeout_ms=_STATEMENT_MS, patience_ms=120_000)
        while not self._stop_asked.is_set():
            # The broker takes a group back if somebody else was quicker: it must have the chance to be the quicker one.
            await asyncio.sleep(self._chance.uniform(0.3, 2.5))
            values = [next(self._values) for _ in range(self._chance.choice((1, 1, 3, 20)))]
            rolls_back = self._chance.random() < 0.3
            hold_s = self._chance.choice((0.0, 0.005, 0.05, 0.2)) * self._chance.random()
            try:
                base_offset = await database.run(
                    lambda connection: _append(connection, values, hold_s, rolls_back=rolls_back)  # noqa: B023
                )
            except _RollBackError:
                self.ledger.not_stored.update(values)
            except DatabaseError as error:
                (self.ledger.unknown if error.is_outcome_unknown else self.ledger.not_stored).update(values)
                await asyncio.sleep(_AWAY_S)
            else:
                for offset, value in enumerate(values, base_offset):
                    self.ledger.acknowledged[value] = (0, offset)
        await database.close()


def _append(connection: Connection, values: Sequence[int], hold_s: float, *, rolls_back: bool) -> int:
    """In a thread, as one transaction; the offset of the first value."""
    if not connection.change("UPDATE queue SET next_id = next_id + ? WHERE table_name = ?", len(values), TABLE):
        raise _RollBackError  # the leader has not made the log yet
    ((next_id,),) = connection.execute("SELECT next_id FROM queue WHERE table_name = ?", TABLE)
    first_id: int = next_id - len(values)
    rows = [(number, str(value).encode()) for number, value in enumerate(values, first_id)]
    connection.insert(TABLE, ("id", "body"), rows)
    time.sleep(hold_s)
    if rolls_back:
        raise _RollBackError
    return first_id - 1
