"""Details that viewers open: one call for all who ask at once, and none from before a change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from penstock.admin import Cluster
from penstock.clock import SystemClock
from penstock.console.polling.cluster_link import ClusterLink
from penstock.console.settings import ClusterSettings, PollingSettings
from support.waiting import PATIENCE_S


@pytest.fixture
def link() -> Iterator[ClusterLink]:
    """Its cluster is never called."""
    made = ClusterLink(ClusterSettings("local", "127.0.0.1:9092"), PollingSettings(), SystemClock())
    yield made
    made.close()


async def test_those_who_ask_at_once_share_a_call(link: ClusterLink) -> None:
    calls: list[str] = []

    def call(admin: Cluster) -> str:
        calls.append("called")
        return "found"

    assert await asyncio.gather(*(link.detail("topic", call) for _ in range(3))) == ["found"] * 3
    assert calls == ["called"]


async def test_one_who_asks_after_a_change_does_not_get_what_was_asked_before_it(link: ClusterLink) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def call_before(admin: Cluster) -> str:
        is_asked.set()
        may_answer.wait(PATIENCE_S)
        return "there is no topic"

    before = asyncio.ensure_future(link.detail("topic", call_before))
    await asyncio.to_thread(is_asked.wait, PATIENCE_S)
    link.forget_details()
    after = asyncio.ensure_future(link.detail("topic", lambda admin: "a topic"))
    await asyncio.wait([after], timeout=0.5)
    may_answer.set()
    assert await after == "a topic"
    assert await before == "there is no topic"
