"""A broker as its users run it: a process of its own, on free loopback ports and a folder of its own."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from support.ports import free_ports
from support.programs import PENSTOCK, Process, start
from support.waiting import until

_STOP_S = 30
_LOG_SHOWN_CHARS = 20_000
_KAFKA_LINE = re.compile(r"^  Kafka clients   (\S+)$", re.MULTILINE)
_HTTP_LINE = re.compile(r"^  health, metrics http://(\S+)$", re.MULTILINE)


class BrokerProcess:
    """Starts with `start`, ends with `stop` (SIGTERM) or `kill` (SIGKILL), and can be started again after either."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        program: str = PENSTOCK,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "data"
        self._output = folder / "stdout"
        self._errors = folder / "stderr"
        self.settings = dict(settings or {})
        """Of the next start."""
        self._options = list(options)
        self.env: Mapping[str, str] = env or {}
        """What its environment has beside ours."""
        self._program = program
        self._process: Process | None = None
        self._said_before = 0
        self.kafka, self.http = (f"127.0.0.1:{port}" for port in free_ports(2))
        self.inter_broker: str | None = None
        """HOST:PORT of its inter-broker listener, if it is told one."""
        self.listen: str | None = None
        """What it is told to listen on at its next start, if that is more than one address. The first is `kafka`."""

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.kafka.rpartition(":")
        return host, int(port)

    @property
    def inter_broker_address(self) -> tuple[str, int]:
        assert self.inter_broker is not None
        host, _, port = self.inter_broker.rpartition(":")
        return host, int(port)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        """All that the broker has printed, over its restarts."""
        return self._output.read_text() if self._output.exists() else ""

    @property
    def log(self) -> str:
        """All that the broker has logged, over its restarts."""
        return self._errors.read_text(errors="replace") if self._errors.exists() else ""

    @property
    def log_tail(self) -> str:
        return self.log[-_LOG_SHOWN_CHARS:]

    def start(self) -> BrokerProcess:
        """Returns when the broker says that it is ready."""
        self.launch()
        return self.wait_until_ready()

    def launch(self) -> None:
        """Starts without waiting; it ends with the thread that has called this."""
        assert not self.is_alive
        self._said_before = len(self.output)
        listen = self.listen or self.kafka
        if self.inter_broker is not None:
            listen = f"PLAINTEXT://{self.kafka},INTER_BROKER://{self.inter_broker}"
        command = [self._program, "serve", "--data", str(self.data), "--listen", listen, "--http", self.http]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        with self._output.open("ab") as output, self._errors.open("ab") as errors:
            # A Ctrl-C in the terminal is for the test run, which then stops the broker: it has a session of its own.
            self._process = start([*command, *self._options], self.env, stdout=output, stderr=errors, new_session=True)

    def wait_until_ready(self) -> BrokerProcess:
        said_before = self._said_before

        def announced() -> tuple[re.Match[str], re.Match[str]] | None:
            if not self.is_alive:
                raise AssertionError(f"the broker did not start:\n{self.output[said_before:]}{self.log_tail}")
            said = self.output[said_before:]
            kafka, http = _KAFKA_LINE.search(said), _HTTP_LINE.search(said)
            return (kafka, http) if kafka and http else None

        try:
            addresses = until(announced, "the broker says that it is ready")
        except BaseException:
            self.kill()
            raise
        assert addresses is not None
        self.kafka, self.http = (found[1] for found in addresses)
        return self

    def stop(self) -> int:
        """Asks the broker to stop and gives its exit status; one that does not stop is killed: a failure."""
        assert self._process is not None
        if self.is_alive:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the broker did not stop on SIGTERM:\n{self.log_tail}") from None

    def kill(self) -> None:
        """Ends the broker as a crash would. Killing twice is allowed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> BrokerProcess:
        """The same folder and ports once more, after `kill`, or after a stop that is done here."""
        if self.is_alive:
            status = self.stop()
            assert status == 0, f"the broker stopped with status {status}:\n{self.log_tail}"
        return self.start()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def get(self, path: str) -> str:
        """The body of a page on the HTTP side."""
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=30) as response:
            body: bytes = response.read()
        return body.decode()

    def get_json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def metrics(self, prefix: str = "") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """The values of /metrics whose names begin like this, by name and sorted labels."""
        # To parse a thousand of them takes longer than all else that a test does to look at one.
        text = "".join(line for line in self.get("/metrics").splitlines(keepends=True) if line.startswith(prefix))
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics(name)[name, tuple(sorted(labels.items()))]

    @property
    def resident_bytes(self) -> int:
        """Memory that the process holds now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()
