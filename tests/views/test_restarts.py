"""Views of a broker that is stopped, killed and started again: what is shown stays what it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from support.broker_process import BrokerProcess
from support.viewing import Order, Shown, confluent_read, create, expected, send

BATCHES, IN_BATCH = 30, 40


def orders_of(round_: int) -> list[list[Order]]:
    """Batches of which each has tags of one kind, but for every fifth."""
    made = []
    for number in range(BATCHES):
        kind = ("a", "b", "c", "d")[number % 4]
        made.append(
            [
                Order(b"%d-%d-%d" % (round_, number, at) + b"x" * 100, kind if number % 5 or at % 3 else "a,b")
                for at in range(IN_BATCH)
            ]
        )
    return made


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_after_a_restart_a_view_shows_the_same_and_reads_less(
    new_broker: Callable[..., BrokerProcess], how: str
) -> None:
    broker = new_broker()
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    create(admin, "orders", "payments", "a", 1, **{"segment.bytes": "30000"})
    orders: list[Order] = []
    found: list[Shown] = []
    for round_ in range(2):
        if round_:
            (broker.stop if how == "stopped" else broker.kill)()
            broker.start()
        batches = orders_of(round_)
        send(broker, "orders", *batches, **{"compression.type": "lz4", "linger.ms": 5})
        orders += [order for batch in batches for order in batch]
        wanted = expected(orders, lambda tags: "a" in tags)
        efforts = []
        for _ in range(2):
            before = broker.metric("penstock_view_looked_at_bytes_total")
            found, _ = confluent_read(broker, "payments", {0: 0}, {0: len(orders)})
            assert found == wanted
            efforts.append(broker.metric("penstock_view_looked_at_bytes_total") - before)
        assert efforts[1] < efforts[0]
    assert len(found) > 600
