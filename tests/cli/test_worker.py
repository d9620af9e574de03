"""`penstock worker`: an application's subscriptions as a process, which stops in good order and reloads."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import direct
from penstock.cli.worker import reload
from penstock.errors import PenstockError
from support.broker_process import BrokerProcess
from support.programs import PENSTOCK, run
from support.receiving import committed, wait_until_joined
from support.waiting import until
from support.worker import WorkerProcess, working

NOBODY = "127.0.0.1:1"
"""Where no broker listens."""

THREADS = """
import time
from pathlib import Path

import penstock

client = penstock.Client({kafka!r}, settings={{"session.timeout.ms": 6000}})


@client.subscribe({topic!r}, group={topic!r}, concurrency=2, tags={tags!r})
def handle(message: penstock.Message) -> None:
    print("begun", message.value.decode(), flush=True)
    while not Path("go").exists():
        time.sleep(0.02)
    print("done", message.value.decode(), flush=True)
"""

TASKS = """
import asyncio
from dataclasses import dataclass
from pathlib import Path

import penstock.aio


def make() -> penstock.aio.Client:
    client = penstock.aio.Client({kafka!r})

    @client.subscribe({topic!r}, group={topic!r})
    async def handle(message: penstock.Message) -> None:
        print("begun", message.value.decode(), flush=True)
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        print("done", message.value.decode(), flush=True)

    return client
"""

WITHOUT_BROKER = """
import penstock
from penstock import direct

client = direct.Client({url!r})


@client.subscribe_in_transaction("orders", group="billing", concurrency=2)
def bill(message: penstock.Message, transaction: direct.HandlerTransaction) -> None:
    transaction.cursor().execute("INSERT INTO bills (number) VALUES (?)", (message.value.decode(),))
"""

TARGETS = {"threads": "app:client", "tasks": "app:make"}
PROGRAMS = {"threads": THREADS, "tasks": TASKS}


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Saves an application, in a folder of its own."""

    def write(program: str, name: str = "app.py", **values: Any) -> Path:
        path = tmp_path / "application" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(program.format(**values) if values else program)
        return path.parent

    return write


@pytest.fixture
def client(broker: BrokerProcess) -> Any:
    with penstock.Client(broker.kafka) as client:
        yield client


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def url_of(worker: WorkerProcess) -> str:
    worker.wait_for("press Ctrl-C to stop")
    (line,) = [line for line in worker.output.splitlines() if line.startswith("health and metrics at ")]
    assert line.endswith(" (/health, /ready, /metrics)")
    return line.split()[4]


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_handlers_finish(
    broker: BrokerProcess,
    client: penstock.Client,
    topic: str,
    save: Callable[..., Path],
    kind: str,
    number: signal.Signals,
) -> None:
    folder = save(PROGRAMS[kind], kafka=broker.kafka, topic=topic, tags=None)
    client.send(topic, b"1", partition=0)
    with working(folder, TARGETS[kind]) as worker:
        worker.wait_for("begun 1")
        worker.signal(number)
        worker.wait_for("stopping: running handlers have 30 s; a second signal stops at once")
        (folder / "go").touch()
        assert worker.ended() == 0
    assert worker.output.endswith("done 1\nstopped\n")
    assert "Traceback" not in worker.log
    assert committed(broker.kafka, topic, topic, 1) == {0: 1}


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_stops_at_once(
    broker: BrokerProcess,
    client: penstock.Client,
    topic: str,
    save: Callable[..., Path],
    kind: str,
    number: signal.Signals,
) -> None:
    folder = save(PROGRAMS[kind], kafka=broker.kafka, topic=topic, tags=None)
    client.send(topic, b"1")
    with working(folder, TARGETS[kind], "--grace", "10m") as worker:
        worker.wait_for("begun 1")
        worker.signal()
        worker.wait_for("stopping")
        worker.signal(number)
        assert worker.ended() == 128 + number
    assert "done" not in worker.output


def test_a_handler_that_does_not_end_is_left_after_the_grace_period(
    broker: BrokerProcess, client: penstock.Client, topic: str, save: Callable[..., Path]
) -> None:
    folder = save(THREADS, kafka=broker.kafka, topic=topic, tags=None)
    client.send(topic, b"1", partition=0)
    with working(folder, "app:client", "--grace", "100ms") as worker:
        worker.wait_for("begun 1")
        worker.stop()
    assert worker.output.endswith("stopped\n")
    assert committed(broker.kafka, topic, topic, 1) in ({}, {0: 0})


def test_a_client_without_a_broker_works_too(save: Callable[..., Path], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with direct.Client(url) as client, closing(sqlite3.connect(tmp_path / "queue.db")) as database:
        client.send("orders", b"7")
        database.execute("CREATE TABLE bills (number TEXT)")
        with working(save(WITHOUT_BROKER, url=url), "app:client", "--http", "127.0.0.1:0") as worker:
            where = url_of(worker)
            until(lambda: database.execute("SELECT number FROM bills").fetchall() == [("7",)], "it is billed")
            until(lambda: get(f"{where}/ready")[0] == 200, "the worker is ready")
            worker.stop()
        assert worker.output.startswith(
            f"listening to orders at {url}: group billing, concurrency 2, handler app.bill\n"
        )
        assert "Traceback" not in worker.log
        # It has left the group: another member need not wait for its session to end.
        assert database.execute("SELECT COUNT(*) FROM direct_member").fetchall() == [(0,)]


def test_a_worker_that_is_killed_leaves_its_message_to_the_next(
    broker: BrokerProcess, client: penstock.Client, topic: str, save: Callable[..., Path]
) -> None:
    folder = save(THREADS, kafka=broker.kafka, topic=topic, tags=None)
    client.send(topic, b"1")
    with working(folder, "app:client") as first:
        first.wait_for("begun 1")
        first.kill()
    (folder / "go").touch()
    with working(folder, "app:client") as second:
        second.wait_for("done 1")
        second.stop()
    assert second.output.count("begun 1") == 2


def test_it_says_what_it_listens_to(
    broker: BrokerProcess, client: penstock.Client, topic: str, save: Callable[..., Path]
) -> None:
    folder = save(THREADS, kafka=broker.kafka, topic=topic, tags="a and not b")
    with working(folder, "app:client") as worker:
        worker.wait_for("press Ctrl-C to stop")
        wait_until_joined(broker.kafka, topic)
        worker.stop()
    assert worker.output.splitlines() == [
        f'listening to {topic} at {broker.kafka}: group {topic}, tags "a and not b", concurrency 2, handler app.handle',
        "press Ctrl-C to stop",
        "stopping: running handlers have 30 s; a second signal stops at once",
        "stopped",
    ]
    assert "partitions assigned" in worker.log


@pytest.mark.parametrize("kind", PROGRAMS)
def test_health_readiness_and_metrics(
    broker: BrokerProcess, client: penstock.Client, topic: str, save: Callable[..., Path], kind: str
) -> None:
    program = PROGRAMS[kind] + "\n\nimport prometheus_client\n\nprometheus_client.Gauge('own', 'Own.').set(7)\n"
    folder = save(program, kafka=broker.kafka, topic=topic, tags=None)
    (folder / "go").touch()
    client.send(topic, b"1")
    with working(folder, TARGETS[kind], "--http", "127.0.0.1:0") as worker:
        url = url_of(worker)
        worker.wait_for("done 1")
        assert get(f"{url}/health")[0] == 200
        status, body = get(f"{url}/ready")
        assert (status, json.loads(body)["status"]) == (200, "ok")
        (subscription,) = json.loads(body)["subscriptions"]
        assert (subscription["topics"], subscription["group"]) == ([topic], topic)
        handled = f'penstock_client_handled_total{{topic="{topic}"}} 1.0'
        until(lambda: handled in get(f"{url}/metrics")[1], "the message is counted")
        assert "\nown 7.0\n" in get(f"{url}/metrics")[1]
        (folder / "go").unlink()
        client.send(topic, b"2")
        worker.wait_for("begun 2")
        worker.signal()
        until(lambda: get(f"{url}/ready")[0] == 503, "a worker that stops is not ready")
        assert get(f"{url}/health")[0] == 200
        (folder / "go").touch()
        assert worker.ended() == 0


def test_without_a_broker_it_waits_and_is_not_ready(topic: str, save: Callable[..., Path]) -> None:
    folder = save(THREADS, kafka=NOBODY, topic=topic, tags=None)
    with working(folder, "app:client", "--http", "127.0.0.1:0") as worker:
        url = url_of(worker)
        assert get(f"{url}/ready")[0] == 503
        assert get(f"{url}/health")[0] == 200
        worker.stop()


def test_the_clients_own_prometheus_hooks_are_shown(topic: str, save: Callable[..., Path]) -> None:
    program = """
import penstock
import prometheus_client

registry = prometheus_client.CollectorRegistry()
prometheus_client.Gauge("own", "Own.", registry=registry).set(7)
client = penstock.Client("127.0.0.1:1", hooks=[penstock.PrometheusHooks(registry)])
client.subscribe("t", print, group="g")
"""
    with working(save(program), "app:client", "--http", "127.0.0.1:0") as worker:
        shown = get(f"{url_of(worker)}/metrics")[1]
        assert "own 7.0" in shown and "penstock_client_sent_total" in shown
        worker.stop()


def test_an_application_that_stops_its_client_ends_the_worker(
    broker: BrokerProcess, client: penstock.Client, topic: str, save: Callable[..., Path]
) -> None:
    program = """
import threading

import penstock

client = penstock.Client({kafka!r})


@client.subscribe({topic!r}, group={topic!r})
def handle(message: penstock.Message) -> None:
    threading.Thread(target=client.stop).start()
"""
    client.send(topic, b"1")
    with working(save(program, kafka=broker.kafka, topic=topic), "app:client") as worker:
        assert worker.ended() == 0
    assert worker.output.endswith("stopped\n")


def test_a_subscription_that_the_cluster_refuses_ends_the_worker(
    broker: BrokerProcess, topic: str, save: Callable[..., Path]
) -> None:
    folder = save(THREADS, kafka=broker.kafka, topic=topic, tags="a and (")
    with working(folder, "app:client") as worker:
        assert worker.ended() == 1
    assert f"penstock: the subscription of group {topic} to {topic} ended: InvalidInputError" in worker.log


WRONG = """
import asyncio

import penstock
import penstock.aio

value = 5
nothing = None
empty = penstock.Client("127.0.0.1:1")
empty_aio = penstock.aio.Client("127.0.0.1:1")
client = penstock.Client("127.0.0.1:1", client_id="shop")
client.subscribe("t", print, group="g")


class Shop:
    pass


def make(size):
    return client


def none():
    return None


def broken():
    return 1 / 0


async def coroutine():
    return client
"""


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["app"], 2, "'app' is not MODULE:ATTRIBUTE, such as shop.app:client"),
        (["app:"], 2, "'app:' is not MODULE:ATTRIBUTE"),
        (["a-b:c"], 2, "'a-b:c' is not MODULE:ATTRIBUTE"),
        (["app.py:client"], 1, "there is no module app.py in "),
        (["nowhere:client"], 1, "there is no module nowhere in "),
        (["app.inner:client"], 1, "there is no module app.inner in "),
        (["app:missing"], 1, "app has no attribute missing (it has the client empty, empty_aio, client); nothing was"),
        (["app:client.missing"], 1, "app has no attribute client.missing"),
        (["app:value"], 1, "app:value is an object of int, not a penstock.Client or penstock.aio.Client; nothing was"),
        (["app:nothing"], 1, "app:nothing is None, not a penstock.Client"),
        (["app:Shop"], 1, "app:Shop is the class Shop, not a penstock.Client"),
        (["app:make"], 1, "app:make takes arguments: use a function without any"),
        (["app:none"], 1, "app:none() returned None, not a penstock.Client"),
        (["app:coroutine"], 1, "app:coroutine is a coroutine function"),
        (["app:empty"], 1, "app:empty has no subscriptions: register handlers with subscribe; nothing was started"),
        (["app:empty_aio"], 1, "app:empty_aio has no subscriptions"),
        (["app:client", "--http", "8093"], 2, "'8093': expected HOST:PORT"),
        (["app:client", "--grace", "soon"], 2, "'soon' is not a duration"),
        (["app:client", "--log-level", "loud"], 2, "'loud' is not one of"),
    ],
)
def test_wrong_inputs_are_one_line_and_nothing_is_started(
    save: Callable[..., Path], arguments: list[str], status: int, said: str
) -> None:
    with working(save(WRONG), *arguments) as worker:
        assert worker.ended() == status
    (line,) = worker.log.splitlines()
    assert line.startswith("penstock: ") and said in line
    assert worker.output == ""


@pytest.mark.parametrize(
    ("program", "target", "shown"),
    [
        (WRONG, "app:broken", "in broken\n    return 1 / 0"),
        ("import nowhere", "app:client", "ModuleNotFoundError: No module named 'nowhere'"),
        ("def (", "app:client", "SyntaxError: invalid syntax"),
        ("import sys\n\nsys.exit(0)", "app:client", "SystemExit: 0"),
        ("import penstock\n\npenstock.Client(5)", "app:client", "line 3, in <module>\n    penstock.Client(5)"),
    ],
)
def test_an_error_of_the_application_is_shown_with_its_traceback(
    save: Callable[..., Path], program: str, target: str, shown: str
) -> None:
    with working(save(program), target) as worker:
        assert worker.ended() == 1
    assert shown in worker.log
    assert worker.log.splitlines()[-1].endswith("; nothing was started")
    ours = str(Path(penstock.__file__).parent)
    assert ours not in worker.log and "importlib" not in worker.log


def test_an_address_in_use_is_an_error_before_anything_starts(save: Callable[..., Path]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with working(save(WRONG), "app:client", "--http", address) as worker:
            assert worker.ended() == 1
    assert f"penstock: --http = '{address}' cannot be listened on" in worker.log
    assert worker.output == ""


def test_a_host_that_is_no_name_is_an_error_before_anything_starts(save: Callable[..., Path]) -> None:
    with working(save(WRONG), "app:client", "--http", f"{'a' * 70}.b:0") as worker:
        assert worker.ended() == 1
    (line,) = worker.log.splitlines()
    assert line.startswith("penstock: --http = ") and "cannot be listened on" in line
    assert worker.output == ""


def test_a_second_client_with_the_same_metrics_is_an_error(save: Callable[..., Path]) -> None:
    program = WRONG + "\n\nother = penstock.Client('127.0.0.1:1', hooks=[penstock.PrometheusHooks()])\n"
    with working(save(program), "app:client", "--http", "127.0.0.1:0") as worker:
        assert worker.ended() == 1
    assert "pass the same PrometheusHooks to both" in worker.log
    assert worker.output == ""


def test_logging_of_the_application_is_left_alone(save: Callable[..., Path]) -> None:
    program = WRONG + "\n\nimport logging\n\nlogging.basicConfig(format='OWN %(message)s')\n"
    with working(save(program), "app:client") as worker:
        worker.wait_for("OWN no broker is reachable")
        worker.stop()


RELOADED = """
import penstock

from shop.words import WORD

client = penstock.Client({kafka!r}, settings={{"session.timeout.ms": 6000}})


@client.subscribe({topic!r}, group={topic!r})
def handle(message: penstock.Message) -> None:
    print(WORD, message.value.decode(), flush=True)
"""


def test_a_change_of_a_file_starts_the_worker_again(
    broker: BrokerProcess, client: penstock.Client, topic: str, save: Callable[..., Path]
) -> None:
    save("", "shop/__init__.py")
    save("WORD = 'first'\n", "shop/words.py")
    folder = save(RELOADED, kafka=broker.kafka, topic=topic)
    client.send(topic, b"1")
    with working(folder, "app:client", "--reload") as worker:
        worker.wait_for("watching 3 .py files below ")
        worker.wait_for("first 1")
        save("WORD = 'second'\n", "shop/words.py")
        worker.wait_for("shop/words.py has changed; starting the worker again")
        client.send(topic, b"2")
        worker.wait_for("second 2")
        save("WORD = \n", "shop/words.py")
        worker.wait_for("SyntaxError")
        worker.wait_for("the worker ended with status 1; it starts again when a file changes")
        save("WORD = 'third'\n", "shop/words.py")
        client.send(topic, b"3")
        worker.wait_for("third 3")
        worker.stop()
    assert worker.output.count("stopped\n") == 3
    assert "second 1" not in worker.output


def test_the_second_signal_ends_a_reloaded_worker_and_its_child_at_once(
    broker: BrokerProcess, client: penstock.Client, topic: str, save: Callable[..., Path]
) -> None:
    program = THREADS.replace(
        'print("begun"', 'import os\n    print("pid", os.getpid(), flush=True)\n    print("begun"'
    )
    folder = save(program, kafka=broker.kafka, topic=topic, tags=None)
    client.send(topic, b"1")
    with working(folder, "app:client", "--reload", "--grace", "10m") as worker:
        worker.wait_for("begun 1")
        child = int(worker.output.partition("pid ")[2].split()[0])
        worker.signal()
        worker.wait_for("stopping")
        worker.signal()
        assert worker.ended() == 128 + signal.SIGTERM
    until(lambda: _is_gone(child), "the child has ended")


def test_a_child_ends_with_the_process_that_reloads_it(
    broker: BrokerProcess, client: penstock.Client, topic: str, save: Callable[..., Path]
) -> None:
    folder = save(THREADS, kafka=broker.kafka, topic=topic, tags=None)
    (folder / "go").touch()
    client.send(topic, b"1")
    with working(folder, "app:client", "--reload") as worker:
        worker.wait_for("done 1")
        worker.kill()
        until(lambda: worker.output.endswith("stopped\n"), "the child stops in good order")


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_only_sources_of_the_application_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("app.py", "shop/words.py", "shop/__pycache__/a.py", ".git/b.py", "venv/lib/c.py", "node_modules/d.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nothing")
    before = reload.file_times(tmp_path)
    assert sorted(before) == [str(tmp_path / "app.py"), str(tmp_path / "shop" / "words.py")]
    (tmp_path / "app.py").write_text("x = 1\n")
    (tmp_path / "shop" / "words.py").unlink()
    (tmp_path / "new.py").write_text("")
    changed = reload.changed_files(before, reload.file_times(tmp_path))
    assert [Path(path).name for path in changed] == ["app.py", "new.py", "words.py"]
    monkeypatch.setattr(reload, "MAX_FILES", 1)
    with pytest.raises(PenstockError, match=r"more than 1 \.py files below"):
        reload.file_times(tmp_path)


def test_help_names_the_options() -> None:
    shown = run([PENSTOCK, "worker", "--help"]).stdout.decode()
    assert all(option in shown for option in ("APP", "--http", "--grace", "--reload", "--log-level"))
