"""Delayed messages on a Kafka cluster that cannot delay, through `penstock delay-bridge` and a SQLite file."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import penstock

bootstrap = os.environ.get("BOOTSTRAP", "localhost:9092")
client = penstock.Client(bootstrap, hooks=[penstock.DelayBridge("bridge-delays")])
last = threading.Event()


@client.subscribe("bridge-orders", group="bridge-shop", from_beginning=True)
def handle(message: penstock.Message) -> None:
    print(message.value.decode(), flush=True)
    if message.value == b"order 2 is closed":
        last.set()


client.send("bridge-orders", "order 1 is open", key="shop")  # not delayed: straight to its topic
client.send("bridge-orders", "order 1 is closed", key="shop", delay="2s", timer_id="close-1")
client.send("bridge-orders", "order 2 is closed", key="shop", delay="3s", timer_id="close-2")
client.cancel("bridge-orders", "close-1", key="shop")
with tempfile.TemporaryDirectory() as folder:
    options = ["--group", "bridge-delays", "--database", f"sqlite:///{folder}/delays.db", "--bootstrap", bootstrap]
    bridge = subprocess.Popen(
        [Path(sys.executable).with_name("penstock"), "delay-bridge", "bridge-delays", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    client.start()
    last.wait()
    bridge.terminate()
    bridge.wait()
client.close()
