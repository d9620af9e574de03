"""A producer that sends messages for now and for later, and knows which of them were acknowledged."""

from __future__ import annotations

import random
import threading
import time

from confluent_kafka import KafkaError, Message, Producer


class DelayedLoad:
    """Sends until it is told to stop; knows what was acknowledged."""

    def __init__(self, kafka: str, seed: int) -> None:
        self.acknowledged: set[bytes] = set()
        self.sent = 0
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 5, "batch.num.messages": 50}
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0

    def _run(self) -> None:
        while not self._stop.is_set():
            for _ in range(20):
                delay = self._chance.choice([0, 0, 20, 300, 900, 2000])
                headers: list[tuple[str, str | bytes | None]] = [("other", b"header")]
                if delay:
                    headers = [("penstock-delay", b"%d" % delay)]
                self._producer.produce("t", b"%d" % self.sent, partition=0, headers=headers, on_delivery=self._report)
                self.sent += 1
            self._producer.poll(0)
            time.sleep(0.005)

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.add(message.value() or b"")
