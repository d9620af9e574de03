"""`client.run()`: until a signal comes, and then in good order."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import penstock
from support import running_client
from support.broker_process import BrokerProcess
from support.programs import dying_with_us, environment
from support.receiving import committed
from support.waiting import PATIENCE_S


@pytest.mark.parametrize("kind", ["threads", "tasks"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_handler_finish_and_its_message_is_acknowledged(
    broker: BrokerProcess, topic: str, kind: str, number: signal.Signals
) -> None:
    with penstock.Client(broker.kafka) as client:
        client.send(topic, b"value", partition=0)
    words = [sys.executable, running_client.__file__, kind, broker.kafka, topic]
    program = subprocess.Popen(dying_with_us(words), stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        program.send_signal(number)
        assert program.stdout.read() == "done\nstopped\n"
        assert program.wait(PATIENCE_S) == 0
    finally:
        program.kill()
        program.wait()
    assert committed(broker.kafka, topic, topic, 1) == {0: 1}


def test_there_is_nothing_to_run_without_a_subscription(broker: BrokerProcess) -> None:
    with penstock.Client(broker.kafka) as client, pytest.raises(penstock.InvalidInputError, match="subscribe"):
        client.run()


def test_a_coroutine_is_refused_where_threads_call_handlers(broker: BrokerProcess) -> None:
    async def handle(message: penstock.Message) -> None:
        """Never called."""

    with penstock.Client(broker.kafka) as client, pytest.raises(penstock.InvalidInputError, match=r"penstock\.aio"):
        client.subscribe("topic", handle, group="group")
