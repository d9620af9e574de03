"""The console over a large cluster: time to the first useful content of each page, memory, and requests to the broker.

    python -m bench.console [--partitions 10000] [--groups 1000] [--messages 10000000] [--rounds 5] [--watch-s 60]

One broker and one console, each a process of its own with its default settings, and Debian's Chromium. The messages are
in one topic; the partitions are in topics of 50 and one of 1,000. Each page is opened by its address, as a link from a
colleague is: document, scripts, data and drawing count, until the page says that it is drawn and shows what it is
about, not a placeholder. The CPU time of an opening says what it costs on a machine that does other things meanwhile;
the console's and the broker's include the polling that goes on. Requests are what the broker counts: with no viewer,
with one on the overview, and with 50, who ask what the scripts of the pages asked when they were recorded, as often as
they did.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Browser, Page, Request, sync_playwright

from bench.servers.penstock import PenstockServer
from bench.servers.process import Launch, ServerError, ServerProcess
from bench.servers.usage import cpu_s, rss_mb

CLUSTER = "bench"
BUSY, WIDE = "orders", "wide"
BUSY_PARTITIONS, WIDE_PARTITIONS, TOPIC_PARTITIONS = 12, 1000, 50
GROUP_PARTITIONS = 10
DELAYED = 500
BODIES = 10_000
VIEWERS = 50
TURN_S = 5.0
"""Pages ask again so often."""
LIMIT_S = 300.0
PAGE_LIMIT_S = 60.0
GOAL_MS = 1000.0
LOGIN = re.compile(r"^(http://\S+)/login\?token=(\S+)$", re.MULTILINE)
USEFUL = "#main :is(tbody tr:not([aria-hidden]), .empty, .kpi .value, pre, form, .banner.error)"
PROBLEM = "#main .banner.error"
DRAWN = """() => document.querySelector("#main")?.dataset.ready
    && ![...document.querySelectorAll("#main .skeleton")].some((each) => each.checkVisibility())"""
CHROMIUM = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic of 1,000 partitions": f"/topics/{WIDE}",
    "settings of a topic": f"/topics/{BUSY}/settings",
    "newest messages": f"/topics/{BUSY}/messages",
    "messages from an offset": f"/topics/{BUSY}/messages?partition=0&from=offset&offset=1000",
    "groups": "/groups",
    "group": "/groups/group-0001",
    "members of a group": "/groups/group-0001/members",
    "delayed messages": f"/delayed/{BUSY}",
    "dead letters": "/dead-letters",
    "transactions": "/transactions",
    "brokers": "/brokers",
    "database nodes": "/databases",
    "alerts": "/alerts",
    "cleaning jobs": "/jobs",
    "users": "/users",
    "audit log": "/audit",
}
PAGES_HEAD = """\
| page | median ms | worst ms | CPU-ms: console | broker | browser and benchmark |
|---|---|---|---|---|---|"""
VIEWERS_HEAD = """\
| viewers | requests a minute to the broker | console, cores | console, MB | answers, p50 ms | p99 ms |
|---|---|---|---|---|---|"""
VIEWED = ("/", "/topics", f"/topics/{WIDE}", "/groups", "/groups/group-0002", "/brokers")
"""What 50 viewers look at."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is made."""

    partitions: int
    groups: int
    messages: int


@dataclass(frozen=True, slots=True)
class ConsoleUnderTest:
    """A console that runs."""

    process: ServerProcess
    address: str
    token: str


def fill(address: str, sizes: Sizes) -> None:
    """Topics, messages, delayed messages and groups, of which some are behind."""
    admin = AdminClient({"bootstrap.servers": address})
    wide = min(WIDE_PARTITIONS, max(1, sizes.partitions // 10))
    rest = max(0, sizes.partitions - wide - BUSY_PARTITIONS)
    counts = {BUSY: BUSY_PARTITIONS, WIDE: wide}
    counts |= {
        f"topic-{number:04}": min(TOPIC_PARTITIONS, rest - first)
        for number, first in enumerate(range(0, rest, TOPIC_PARTITIONS))
    }
    new = [NewTopic(name, count, 1) for name, count in counts.items()]
    for made in admin.create_topics(new, operation_timeout=LIMIT_S, request_timeout=LIMIT_S).values():
        made.result(LIMIT_S)
    produce(address, counts, sizes.messages)
    names = [name for name in counts if name not in (BUSY, WIDE)] or [WIDE]
    wanted = []
    for number in range(sizes.groups):
        topic = BUSY if number % 10 == 1 else names[number % len(names)]
        places = [TopicPartition(topic, index, number % 50) for index in range(min(GROUP_PARTITIONS, counts[topic]))]
        wanted.append(ConsumerGroupTopicPartitions(f"group-{number:04}", places))
    for each in wanted:
        for committed in admin.alter_consumer_group_offsets([each]).values():
            committed.result(LIMIT_S)


def produce(address: str, counts: Mapping[str, int], messages: int) -> None:
    some = random.Random(7)
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    bodies: list[dict[str, Any]] = [
        {
            "key": f"c-{number % 997}",
            "value": json.dumps({"id": f"o-{number}", "total": round(some.uniform(5, 250), 2)}),
        }
        for number in range(BODIES)
    ]
    left = messages
    turns = itertools.cycle(range(BUSY_PARTITIONS))
    while left > 0:
        batch = bodies[:left]
        try:
            left -= producer.produce_batch(BUSY, batch, partition=next(turns))
        except BufferError:
            pass
        producer.poll(0.01 if len(producer) > 500_000 else 0)
    for number in range(DELAYED):
        headers: list[tuple[str, str | bytes | None]] = [
            ("penstock-delay", f"{10 + number}m"),
            ("penstock-timer-id", f"timer-{number}"),
        ]
        producer.produce(BUSY, "later", headers=headers)
    for topic in counts:
        producer.produce(topic, "one", partition=0)
    if producer.flush(LIMIT_S):
        raise SystemExit("the messages were not taken in time")


@contextmanager
def console_over(address: str, folder: Path) -> Iterator[ConsoleUnderTest]:
    """With its default settings."""
    folder.mkdir()
    command = [str(Path(sys.executable).parent / "penstock"), "console", "--cluster", f"{CLUSTER}={address}"]
    command += ["--port", "0", "--data", str(folder / "data")]
    process = ServerProcess(Launch(address=address, command=tuple(command), folder=folder))
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (told := LOGIN.search((folder / "server.log").read_text().replace("  ", ""))):
            process.check()
            if time.monotonic() > deadline:
                raise ServerError("the console did not start")
            time.sleep(0.05)
        yield ConsoleUnderTest(process, told[1], told[2])
    finally:
        process.stop()


@contextmanager
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("Chromium is not installed: make setup-test")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(CHROMIUM))
        try:
            yield browser
        finally:
            browser.close()


def opened_ms(page: Page, console: ConsoleUnderTest, path: str) -> float:
    """From the click on a link to the page's first useful content."""
    # Another document in between, so that each time begins with nothing drawn.
    page.goto("about:blank")
    began = time.perf_counter()
    page.goto(f"{console.address}/c/{CLUSTER}{path}", wait_until="commit")
    page.wait_for_function(DRAWN, timeout=PAGE_LIMIT_S * 1000)
    page.locator(USEFUL).locator("visible=true").first.wait_for(timeout=PAGE_LIMIT_S * 1000)
    took_ms = (time.perf_counter() - began) * 1000
    if page.locator(PROBLEM).count():
        raise SystemExit(f"{path} shows a problem: {page.locator(PROBLEM).first.inner_text()}")
    return took_ms


def requests_of(http: str) -> int:
    """That the broker has answered so far; the scrape itself is none."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=LIMIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return round(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("penstock_requests_total{")))


def recorded(page: Page, console: ConsoleUnderTest, path: str) -> list[str]:
    """The questions to the API that a page repeats while it is open."""
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    opened_ms(page, console, path)
    page.on("request", note)
    page.wait_for_timeout(TURN_S * 1000 + 500)
    page.remove_listener("request", note)
    return list(dict.fromkeys(urlsplit(url)._replace(scheme="", netloc="").geturl() for url in asked if "/api/" in url))


class Viewers:
    """Viewers that ask what pages ask, every few seconds, each at its own moment."""

    def __init__(self, console: ConsoleUnderTest, cookies: Mapping[str, str], asked: Sequence[Sequence[str]]) -> None:
        self._console = console
        self._cookies = cookies
        self._asked = asked
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._view, args=(number,)) for number in range(VIEWERS)]
        self.answers_ms: list[float] = []
        self.failed: list[str] = []

    def __enter__(self) -> Viewers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _view(self, number: int) -> None:
        self._stop.wait(TURN_S * number / VIEWERS)
        with httpx.Client(base_url=self._console.address, cookies=dict(self._cookies), timeout=LIMIT_S) as client:
            while not self._stop.is_set():
                for path in self._asked[number % len(self._asked)]:
                    began = time.perf_counter()
                    answer = client.get(path)
                    self.answers_ms.append((time.perf_counter() - began) * 1000)
                    if answer.status_code != 200:
                        self.failed.append(f"{path}: {answer.status_code}")
                self._stop.wait(TURN_S)


def watched(http: str, console: ConsoleUnderTest, watch_s: float) -> tuple[float, float]:
    """Requests a minute to the broker, and the share of a core that the console takes."""
    before, cpu = requests_of(http), cpu_s(console.process.pid)
    began = time.monotonic()
    time.sleep(watch_s)
    spent = time.monotonic() - began
    return (requests_of(http) - before) * 60 / spent, (cpu_s(console.process.pid) - cpu) / spent


def run(sizes: Sizes, rounds: int, watch_s: float) -> None:
    folder = Path(tempfile.mkdtemp(prefix="penstock-console-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        launch = PenstockServer().prepare(folder / "broker")
        broker = ServerProcess(launch)
        stack.callback(broker.stop)
        http = launch.command[launch.command.index("--http") + 1]
        AdminClient({"bootstrap.servers": launch.address, "log_level": 0}).list_topics(timeout=30)
        began = time.monotonic()
        fill(launch.address, sizes)
        print(
            f"{sizes.partitions:,} partitions, {sizes.groups:,} groups and {sizes.messages:,} messages"
            f" were made in {time.monotonic() - began:.0f} s\n",
            flush=True,
        )
        console = stack.enter_context(console_over(launch.address, folder / "console"))
        browser = stack.enter_context(chromium())
        page = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-US").new_page()
        began = time.monotonic()
        page.goto(f"{console.address}/login?token={console.token}")
        page.wait_for_function(DRAWN, timeout=LIMIT_S * 1000)
        settle(page, console, sizes)
        print(f"all groups were read {time.monotonic() - began:.0f} s after the first sign-in\n", flush=True)
        print(PAGES_HEAD)
        for name, path in PAGES.items():
            before = (cpu_s(console.process.pid), cpu_s(broker.pid), cpu_s(os.getpid()))
            times = [opened_ms(page, console, path) for _ in range(rounds)]
            after = (cpu_s(console.process.pid), cpu_s(broker.pid), cpu_s(os.getpid()))
            of_console, of_broker, of_all = (1000 * (b - a) / rounds for a, b in zip(before, after, strict=True))
            middle = statistics.median(times)
            mark = "" if middle <= GOAL_MS else " **over a second**"
            cells = [f"{middle:.0f}{mark}", f"{max(times):.0f}"]
            cells += [f"{each:.0f}" for each in (of_console, of_broker, of_all - of_console - of_broker)]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
        page.goto("about:blank")
        print(
            "\n| viewers | requests a minute to the broker | console, cores | console, MB | answers, p50 ms | p99 ms |"
        )
        print("|---|---|---|---|---|---|")
        told(0, watched(http, console, watch_s), console, ())
        opened_ms(page, console, "/")
        told(1, watched(http, console, watch_s), console, ())
        asked = [recorded(page, console, path) for path in VIEWED]
        cookies = {str(each.get("name")): str(each.get("value")) for each in page.context.cookies()}
        page.goto("about:blank")
        with Viewers(console, cookies, asked) as viewers:
            found = watched(http, console, watch_s)
        told(VIEWERS, found, console, viewers.answers_ms)
        if viewers.failed:
            raise SystemExit(f"{len(viewers.failed)} questions failed, the first: {viewers.failed[0]}")


def settle(page: Page, console: ConsoleUnderTest, sizes: Sizes) -> None:
    """Waits until the poller has asked for every group once."""
    deadline = time.monotonic() + LIMIT_S
    script = """async ([address, wanted]) => {
        let known = 0;
        for (let first = 0; first < wanted; first += 500) {
            const answer = await fetch(`${address}&first=${first}`, {credentials: "same-origin"});
            const told = await answer.json();
            known += told.items.filter((each) => each.lag !== null).length;
        }
        return known >= wanted;
    }"""
    address = f"/api/clusters/{CLUSTER}/groups?limit=500"
    while not page.evaluate(script, [address, sizes.groups]):
        if time.monotonic() > deadline:
            raise SystemExit("the console has not read all groups in time")
        time.sleep(0.5)


def told(viewers: int, found: tuple[float, float], console: ConsoleUnderTest, answers_ms: Sequence[float]) -> None:
    times = sorted(answers_ms)
    answers = [f"{times[int(len(times) * share)]:.0f}" for share in (0.5, 0.99)] if times else ["–", "–"]
    cells = [str(viewers), f"{found[0]:.0f}", f"{found[1]:.2f}", f"{rss_mb(console.process.pid):.0f}", *answers]
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.console")
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--watch-s", type=float, default=60.0)
    given = parser.parse_args()
    try:
        run(Sizes(given.partitions, given.groups, given.messages), given.rounds, given.watch_s)
    except (ServerError, subprocess.SubprocessError) as error:
        raise SystemExit(str(error)) from None
