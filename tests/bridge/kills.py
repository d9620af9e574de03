"""Two bridges, killed and paused at random while messages with random delays go through them; what came of it.

`python -m tests.bridge --help` runs it for as long as you let it.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from support.bridge_process import BridgeProcess
from support.bridged import PREFIXED, Arrived, Sender, asking, collect, create_topics

_CHUNK = 100
_PAUSED_S = 3.0
"""Longer than a lease: a bridge that wakes up after it has been replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillPlan:
    """What is done."""

    messages: int
    seconds: float
    """For how long messages are sent and bridges killed."""
    max_delay_ms: int = 5000
    partitions: int = 4
    targets: int = 2
    seed: int = 0
    arguments: Sequence[str] = ()
    """Further ones of the bridges."""
    patience_s: float = 120.0
    is_killing: bool = True
    every_s: float = 1.4
    """From one kill or pause to the next, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillReport:
    """What was found in the targets."""

    sent: int
    lost: int
    repeated: int
    early: int
    kills: int
    pauses: int
    lateness_ms: Sequence[int]
    """Of each message, ascending."""
    seconds: float
    """From the first message sent to the last one forwarded."""

    def percentile(self, share: float) -> int:
        return self.lateness_ms[min(len(self.lateness_ms) - 1, int(len(self.lateness_ms) * share))]

    def __str__(self) -> str:
        late = ", ".join(f"{name} {self.percentile(share)} ms" for name, share in _SHARES.items())
        return (
            f"{self.sent} sent, {self.lost} lost, {self.repeated} repeated, {self.early} early;"
            f" {self.kills} kills, {self.pauses} pauses; late: {late}; {self.seconds:.1f} s"
        )


_SHARES = {"median": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "most": 1.0}


class Killer:
    """Kills or pauses one of the bridges again and again, and starts it anew.

    A bridge ends with the thread that started it, so all this happens in the thread that waits for the report.
    """

    def __init__(self, bridges: Sequence[BridgeProcess], plan: KillPlan) -> None:
        self._bridges = bridges
        self._random = random.Random(plan.seed)
        self._longest_s = 2 * plan.every_s
        self.kills = self.pauses = 0

    def kill_until(self, over: threading.Event) -> None:
        while not over.wait(self._random.uniform(0, self._longest_s)):
            bridge = self._random.choice(self._bridges)
            if self._random.random() < 0.25:
                bridge.signal(signal.SIGSTOP)
                over.wait(_PAUSED_S)
                bridge.signal(signal.SIGCONT)
                self.pauses += 1
            else:
                bridge.kill()
                self.kills += 1
                over.wait(self._random.uniform(0, 1))
                bridge.launch()


def run_kills(kafka: str, name: str, folder: Path, database: str, plan: KillPlan) -> KillReport:
    """Run the plan on a cluster; topics and the group have `name` in them."""
    targets = [f"{name}-target-{number}" for number in range(plan.targets)]
    create_topics(kafka, {name: plan.partitions, **dict.fromkeys(targets, 3)})
    arguments = [name, "-b", kafka, "--group", f"{name}-bridge", "--lease", "2s", *PREFIXED, *plan.arguments]
    settings = folder / "settings"
    folder.mkdir(parents=True, exist_ok=True)
    settings.write_text("session.timeout.ms=6000\n")
    arguments += ["--settings-file", str(settings)]
    bridges = [BridgeProcess(folder / f"bridge-{number}", *arguments, database=database) for number in (1, 2)]
    killer = Killer(bridges, plan)
    try:
        for bridge in bridges:
            bridge.start()
        began_ms = time.time_ns() // 1_000_000
        with ThreadPoolExecutor(1) as threads:
            is_sent = threading.Event()
            sending = threads.submit(_send, kafka, name, targets, plan)
            sending.add_done_callback(lambda _: is_sent.set())
            if plan.is_killing:
                killer.kill_until(is_sent)
            sending.result()
        found = _collected(kafka, targets, plan)
        assert all("Traceback" not in bridge.log for bridge in bridges), [bridge.log[-4000:] for bridge in bridges]
        return _report(found, plan, killer, began_ms)
    except BaseException as error:
        for bridge in bridges:
            error.add_note(f"penstock delay-bridge said:\n{bridge.log[-4000:]}")
        raise
    finally:
        for bridge in bridges:
            bridge.kill()


def _send(kafka: str, topic: str, targets: Sequence[str], plan: KillPlan) -> None:
    chance = random.Random(plan.seed)
    sender = Sender(kafka)
    chunks = max(1, plan.messages // _CHUNK)
    for number in range(plan.messages):
        headers = asking(chance.choice(targets), delay=str(chance.randrange(plan.max_delay_ms)))
        sender.send(topic, b"%d" % number, headers, key=b"%d" % (number % 97))
        if number % _CHUNK == _CHUNK - 1:
            # Spread over the time in which bridges are killed; what is measured does not depend on it.
            time.sleep(plan.seconds / chunks)
    sender.flush()


def _collected(kafka: str, targets: Sequence[str], plan: KillPlan) -> list[Arrived]:
    found: list[Arrived] = []
    deadline = time.monotonic() + plan.patience_s
    while True:
        found = [each for target in targets for each in collect(kafka, target, lambda some: True, quiet_s=2)]
        if len({each.value for each in found}) >= plan.messages or time.monotonic() > deadline:
            return found


def _report(found: Sequence[Arrived], plan: KillPlan, killer: Killer, began_ms: int) -> KillReport:
    counts = Counter(each.value for each in found)
    late = sorted(each.timestamp_ms - int(each.headers["penstock-deliver-at"] or b"") for each in found)
    return KillReport(
        sent=plan.messages,
        lost=plan.messages - len(counts),
        repeated=sum(count - 1 for count in counts.values()),
        early=sum(lateness < 0 for lateness in late),
        kills=killer.kills,
        pauses=killer.pauses,
        lateness_ms=late,
        seconds=(max((each.timestamp_ms for each in found), default=began_ms) - began_ms) / 1000,
    )
