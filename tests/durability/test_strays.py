"""A broker that is alone keeps what its tree does not know: the tree may have been lost, and the records not."""

from __future__ import annotations

from pathlib import Path

from support.broker_process import BrokerProcess
from support.wire import Wire, batch_of


def test_logs_that_the_tree_does_not_know_are_set_aside_and_kept_by_a_broker_that_is_alone(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"log.stray_keep_ms": 0}).start()
    logs = broker.data / "logs"
    try:
        with Wire(broker.address) as wire:
            topic_id = wire.create_topic("orders")
            assert wire.produce("orders", batch_of(b"a record"))["error_code"] == 0
        broker.stop()
        for file in broker.data.glob("coordination.db*"):
            file.unlink()
        for _ in range(2):
            broker.restart()
            (stray,) = logs.glob("*.stray")
            assert stray.name == f"orders-0.{topic_id.hex}.stray"
            assert (stray / "00000000000000000000.log").stat().st_size > 0
        assert "renamed the folder of a log" in broker.log and "deleted a stray log" not in broker.log
    finally:
        broker.kill()
