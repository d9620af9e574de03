"""How many transactions a broker commits, and how long a commit takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.cases.topic import fresh_name, fresh_topics
from bench.client.driver import endpoint
from bench.client.job import Job
from bench.client.launch import run
from bench.client.wire import api_keys
from bench.measure import TRANSACTION_GOAL, Measure, client_cores
from bench.target import Target

_END_TXN_API = 26  # a broker without it has no transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """Begin, produce, commit; with `source_messages` also consume first, and commit the offsets in the transaction."""

    messages: int
    seconds: float
    rounds: int
    producers: int = 1
    source_messages: int = 0
    size: int = 1024
    partitions: int = 1
    kind: str = "transactions"

    @property
    def title(self) -> str:
        what = "1 message" if self.messages == 1 else f"{self.messages} messages"
        if self.source_messages:
            return f"consume-transform-produce of {what}"
        who = "one producer" if self.producers == 1 else f"{self.producers} producers"
        return f"transactions of {what}, {who}"

    def measures(self) -> Sequence[Measure]:
        return [
            Measure(
                key=f"{self.title}, txn_s",
                label=self.title,
                unit="transactions/s",
                higher_is_better=True,
                goal=TRANSACTION_GOAL,
            ),
            *(
                Measure(
                    key=f"{self.title}, {key}",
                    label=f"{self.title}: commit {label}",
                    unit="ms",
                    higher_is_better=False,
                )
                for key, label in (("p50_ms", "p50"), ("p99_ms", "p99"))
            ),
            Measure(key=f"{self.title}, cpu_us", label=self.title, unit="CPU-us/transaction", higher_is_better=False),
            client_cores(self.title),
        ]

    def run(self, target: Target) -> Mapping[str, float]:
        if _END_TXN_API not in api_keys(endpoint(target.address)):
            return {}
        with fresh_topics(target, 2, 1) as (source, sink):
            job = Job(
                task="transactions",
                protocol=target.protocol,
                address=target.address,
                topic=sink,
                size=self.size,
                count=self.messages,
                members=self.producers,
                group=fresh_name(),
                limit_s=self.seconds,
                server_pids=target.pids,
            )
            if self.source_messages:
                run(replace(job, task="produce", topic=source, count=self.source_messages, limit_s=60))
                job = replace(job, task="transform", topics=(source,))
            window = run(job)
        figures = {
            f"{self.title}, txn_s": window["count"] / window["seconds"],
            f"{self.title}, client_cores": window["client_cpu_s"] / window["seconds"],
            **{f"{self.title}, {key}": window[key] for key in ("p50_ms", "p99_ms")},
        }
        if "server_cpu_s" in window:
            figures[f"{self.title}, cpu_us"] = window["server_cpu_s"] / window["count"] * 1e6
        return figures
