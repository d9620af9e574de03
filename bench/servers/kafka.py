"""Apache Kafka from its published jars: one KRaft node with the settings and JVM flags that Kafka ships.

The jars come by coordinates through Maven into a cache folder. Three things differ from the shipped
`server.properties`: listeners are on loopback; deleted topics leave the disk after a second instead of a
minute, so that one case's data is gone before the next is measured; and the coordinator does not wait on purpose
before it gives a group its assignment, unless the server is asked for as shipped.
"""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from bench.servers.certificates import HOST, make_certificate
from bench.servers.jars import fetch_jars
from bench.servers.process import Launch, ServerError, TlsEndpoint, free_ports

DEFAULT_VERSION = "4.3.1"
# What kafka-server-start.sh and kafka-run-class.sh pass when nothing is set.
HEAP = ("-Xmx1G", "-Xms1G")
JVM_FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
_PROPERTIES = """process.roles=broker,controller
node.id={node}
controller.quorum.bootstrap.servers={quorum}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={data}
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor={replicas}
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
log.segment.delete.delay.ms=1000
"""
_TLS = """listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller},SSL://{encrypted}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller},SSL://{encrypted}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""
"""Later lines win over earlier ones."""
_NO_GROUP_DELAYS = """group.initial.rebalance.delay.ms=0
group.consumer.assignment.interval.ms=0
"""


def properties(*, node: int, broker: int, controller: int, quorum: str, data: Path, replicas: int = 1) -> str:
    """The settings of one node; `broker` and `controller` are its ports, `quorum` the addresses of all controllers."""
    return _PROPERTIES.format(
        node=node,
        broker=broker,
        controller=controller,
        quorum=quorum,
        data=data,
        replicas=replicas,
        in_sync=max(1, replicas - 1),
    )


def new_id() -> str:
    """A random id as Kafka writes them."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


class KafkaServer:
    """One Kafka version."""

    name = "Apache Kafka"
    protocol = "kafka"

    def __init__(
        self, cache: Path, version: str = DEFAULT_VERSION, *, group_delays: bool = False, has_tls: bool = False
    ) -> None:
        self.version = version
        self._number = version
        self._root = cache
        self._group_delays = group_delays
        self._has_tls = has_tls
        self._cache = cache / f"kafka-{version}"

    def obtain(self) -> None:
        """Have Java and the jars."""
        fetch_jars(self._cache, [f"org.apache.kafka:kafka_2.13:{self._number}"])

    def with_group_delays(self) -> KafkaServer:
        return KafkaServer(self._root, self._number, group_delays=True)

    def with_tls(self) -> KafkaServer:
        return KafkaServer(self._root, self._number, group_delays=self._group_delays, has_tls=True)

    def prepare(self, folder: Path) -> Launch:
        """Write the configuration and format the storage; not part of the start-up time."""
        folder.mkdir(parents=True)
        broker, controller, encrypted = free_ports(3)
        text = properties(
            node=1,
            broker=broker,
            controller=controller,
            quorum=f"127.0.0.1:{controller}",
            data=folder / "data",
        )
        tls = None
        if self._has_tls:
            certificate = make_certificate(folder)
            tls = TlsEndpoint(address=f"{HOST}:{encrypted}", ca_file=str(certificate.file))
            text += _TLS.format(
                broker=broker, controller=controller, encrypted=tls.address, keystore=certificate.both_file
            )
        file = folder / "server.properties"
        file.write_text(text if self._group_delays else text + _NO_GROUP_DELAYS)
        self.format(file, new_id(), "--standalone")
        return Launch(address=f"127.0.0.1:{broker}", tls=tls, command=self.command(file), folder=folder)

    def prepare_to_crash(self, folder: Path, note_ms: int) -> Launch:
        return self.prepare(folder)

    def wait_until_noted(self, folder: Path, topic: str) -> None:
        """Nothing to wait for: Kafka syncs a segment, and notes that, when it begins the next."""

    def format(self, file: Path, cluster_id: str, voters: str) -> None:
        """Make the storage that a file of settings names."""
        # With an equals sign: an id may begin with a dash.
        command = self._java("kafka.tools.StorageTool", "format", voters, f"--cluster-id={cluster_id}", "-c", str(file))
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise ServerError(f"Kafka's storage could not be formatted: {(done.stdout + done.stderr)[-400:]}")

    def command(self, file: Path, heap: tuple[str, ...] = HEAP) -> tuple[str, ...]:
        """What starts a node with a file of settings."""
        return self._java("kafka.Kafka", str(file), flags=(*heap, *JVM_FLAGS))

    def _java(self, main: str, *arguments: str, flags: tuple[str, ...] = ()) -> tuple[str, ...]:
        return ("java", *flags, "-cp", f"{self._cache / 'libs'}/*", main, *arguments)
