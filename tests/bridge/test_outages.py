"""A database or the cluster goes away while a bridge runs: messages come late, and each of them once."""

from __future__ import annotations

import urllib.error
from pathlib import Path

from conftest import BrokerFactory
from support.bridge_process import BridgeProcess, bridging
from support.bridged import PREFIXED, Sender, asking, collect, create_topics, values_of
from support.broker_process import BrokerProcess
from support.stores import DatabaseServer
from support.waiting import until


def is_ready(bridge: BridgeProcess) -> bool:
    try:
        return bool(bridge.get_json("/ready")["status"] == "ok")
    except urllib.error.HTTPError as error:
        assert error.code == 503
        error.close()
        return False


def test_a_bridge_waits_for_its_database(
    broker: BrokerProcess, topic: str, own_server: DatabaseServer, tmp_path: Path
) -> None:
    orders = f"{topic}-orders"
    create_topics(broker.kafka, {topic: 2, orders: 1})
    arguments = [topic, "-b", broker.kafka, "--group", f"{topic}-bridge", "--lease", "2s", *PREFIXED]
    database = own_server.create_database("bridge_outage")
    with bridging(tmp_path, *arguments, database=database) as bridge:
        until(lambda: is_ready(bridge), "the bridge is ready")
        sender = Sender(broker.kafka)
        for number in range(60):
            if number == 30:
                sender.flush()
                collect(broker.kafka, orders, bool)
                own_server.kill()
                until(lambda: not is_ready(bridge), "the bridge misses its database")
            sender.send(topic, b"%d" % number, asking(orders, delay=f"{number * 50}ms"), partition=number % 2)
        sender.flush()
        own_server.start()
        arrived = collect(broker.kafka, orders, lambda found: len(found) >= 60, quiet_s=2)
        assert sorted(map(int, values_of(arrived))) == list(range(60))
        until(lambda: is_ready(bridge), "the bridge is ready again")
        bridge.stop()
    own_server.drop_database("bridge_outage")


def test_a_bridge_waits_for_the_cluster(new_broker: BrokerFactory, topic: str, tmp_path: Path) -> None:
    broker = new_broker()
    orders = f"{topic}-orders"
    create_topics(broker.kafka, {topic: 2, orders: 1})
    arguments = [topic, "-b", broker.kafka, "--group", f"{topic}-bridge", "--lease", "2s", *PREFIXED]
    with bridging(tmp_path, *arguments, database=f"sqlite:///{tmp_path / 'bridge.db'}") as bridge:
        sender = Sender(broker.kafka)
        for number in range(60):
            sender.send(topic, b"%d" % number, asking(orders, delay=f"{number * 50}ms"), partition=number % 2)
        sender.flush()
        collect(broker.kafka, orders, bool)
        broker.kill()
        until(lambda: not is_ready(bridge), "the bridge misses the cluster")
        broker.start()
        arrived = collect(broker.kafka, orders, lambda found: len(found) >= 60, patience_s=90, quiet_s=2)
        assert sorted(map(int, values_of(arrived))) == list(range(60))
        for each in arrived:
            assert each.timestamp_ms >= int(each.headers["penstock-deliver-at"] or b"")
        until(lambda: is_ready(bridge), "the bridge is ready again")
        bridge.stop()
