"""Apache RocketMQ 5 from its published jars: one broker with its timer wheel on, and no name server, which clients that
know the broker's address do not need.

What differs from the settings it ships with: a delay may be longer than three days, a pull may give more than 32
messages, and the heap is small. Its replication port cannot be bound to one address; nobody connects to it.
"""

from __future__ import annotations

from pathlib import Path

from bench.servers.jars import fetch_jars
from bench.servers.process import Launch, free_ports

VERSION = "5.5.0"
_JARS = [f"org.apache.rocketmq:rocketmq-{name}:{VERSION}" for name in ("broker", "namesrv", "client")]
_FLAGS = ("-server", "-Xms512m", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=1g")
_SETTINGS = """brokerClusterName=bench
brokerName=bench
brokerId=0
brokerIP1=127.0.0.1
bindAddress=127.0.0.1
listenPort={port}
haListenPort={replication}
storePathRootDir={data}
storePathCommitLog={data}/commitlog
timerWheelEnable=true
timerMaxDelaySec=2764800
maxTransferCountOnMessageInMemory=1000
maxTransferBytesOnMessageInMemory=1048576
"""


class RocketServer:
    """RocketMQ with its own settings but for those above."""

    name = "RocketMQ"
    protocol = "rocketmq"
    version = VERSION

    def __init__(self, cache: Path) -> None:
        self._cache = cache / f"rocketmq-{VERSION}"

    def obtain(self) -> None:
        fetch_jars(self._cache, _JARS)

    def prepare(self, folder: Path) -> Launch:
        folder.mkdir(parents=True)
        port, replication = _ports()
        file = folder / "broker.conf"
        file.write_text(_SETTINGS.format(port=port, replication=replication, data=folder / "store"))
        jars = f"{self._cache / 'libs'}/*"
        main = ("org.apache.rocketmq.broker.BrokerStartup", "-c", str(file))
        return Launch(
            address=f"127.0.0.1:{port}",
            command=("java", *_FLAGS, f"-Duser.home={folder}", "-cp", jars, *main),
            folder=folder,
            env={"ROCKETMQ_HOME": str(folder)},
        )


def _ports() -> tuple[int, int]:
    """The port that clients use and the one for replicas; the broker also takes the one two below the first."""
    while True:
        first, second = free_ports(2)
        if second not in (first, first - 2):
            return first, second
