"""What an application's log says when something goes wrong, with Python's logging as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.programs import dying_with_us, environment
from support.waiting import until

APPLICATION = """
import sys
import penstock

client = penstock.Client(sys.argv[1])
topic = sys.argv[2]

retries = penstock.Retries(first="100ms", attempts=2, jitter=0)

@client.subscribe(topic, group="billing-" + topic, retries=retries, from_beginning=True)
def bill(message):
    raise ValueError("no such card")

for number in range(int(sys.argv[3])):
    client.send(topic, str(number))
client.run()
"""


class Application:
    """A program that has configured no logging."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        (folder / "application.py").write_text(APPLICATION)
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                dying_with_us([sys.executable, str(folder / "application.py"), *arguments]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(),
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def said(self, pattern: str) -> list[str]:
        return re.findall(pattern, self.output)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Application]]:
    started: list[Application] = []

    def start(*arguments: str) -> Application:
        started.append(Application(tmp_path, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def test_a_failing_handler_shows_its_traceback_once_and_each_failure_on_a_line(
    broker: BrokerProcess, topic: str, start: Callable[..., Application]
) -> None:
    application = start(broker.kafka, topic, "3")
    until(lambda: len(application.said("became a dead letter")) == 3, "all are dead letters")
    assert application.output.count("Traceback") == 1
    assert 'raise ValueError("no such card")' in application.output
    for offset in range(3):
        failed = rf"group billing-{topic}: handler __main__\.bill failed on {topic}-0 offset {offset} "
        assert application.said(failed + r"\(attempt 1 of 2\): ValueError: no such card; retry in 0\.1 s\n")
        assert application.said(failed + r"\(attempt 2 of 2\): ValueError: no such card; no attempts left\n")
        letter = (
            rf"group billing-{topic}: {topic}-0 offset {offset} became a dead letter after 2 attempts: ValueError: "
        )
        assert application.said(letter)


def test_a_broker_that_is_down_is_one_line_that_names_it_and_why_and_one_when_it_is_back(
    new_broker: BrokerFactory, topic: str, start: Callable[..., Application]
) -> None:
    broker = new_broker()
    application = start(broker.kafka, topic, "1")
    until(lambda: application.said("became a dead letter"), "it works")
    before = len(application.output.splitlines())
    broker.kill()
    until(lambda: application.said("no broker is reachable"), "it has noticed")
    broker.start()
    until(lambda: application.said("brokers are reachable again"), "it is over")
    down, up = [line for line in application.output.splitlines()[before:] if "reachable" in line]
    assert re.fullmatch(rf"no broker is reachable \(bootstrap {broker.kafka}\): .*{broker.kafka}.*", down)
    assert "Connection refused" in down
    assert re.fullmatch(rf"brokers are reachable again \(bootstrap {broker.kafka}\), after \d+ s", up)


def test_a_group_that_may_not_join_says_why(
    new_broker: BrokerFactory, topic: str, start: Callable[..., Application]
) -> None:
    broker = new_broker({"groups.max_session_timeout_ms": 7_000})
    application = start(broker.kafka, topic, "0")
    until(lambda: application.said(rf"group billing-{topic}: .*[Ss]ession"), "it has said so")
