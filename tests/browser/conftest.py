"""One broker for all tests of pages, one console and one Chromium for those of a file; each keeps to topics of its own.

Playwright keeps an event loop running in the thread of the tests. It has to be gone when a file ends: the same worker
may run tests next that are coroutines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from support.broker_process import BrokerProcess
from support.console_pages import ConsolePages, chromium
from support.console_process import ConsoleProcess
from support.waiting import PATIENCE_S

CLUSTER = "shop"
NewPages = Callable[..., ConsolePages]

expect.set_options(timeout=PATIENCE_S * 1000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the console looks for a lake; a test that wants one makes it."""
    return tmp_path_factory.mktemp("lake") / "lake"


@pytest.fixture(scope="module")
def console(broker: BrokerProcess, lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    options = ["--lake", f"{CLUSTER}={lake}"]
    process = ConsoleProcess(tmp_path_factory.mktemp("console"), CLUSTER, broker.kafka, options)
    try:
        yield process.start()
        process.stop()
        assert "Traceback" not in process.log, process.log
    finally:
        process.kill()


@pytest.fixture(scope="module")
def signed_in(browser: Browser, console: ConsoleProcess) -> Iterator[dict[str, Any]]:
    """The cookie of the admin: the address in the terminal works once."""
    first = ConsolePages(browser, console, CLUSTER).sign_in_once()
    state: dict[str, Any] = dict(first.context.storage_state())
    yield state
    first.close()


@pytest.fixture
def new_pages(browser: Browser, console: ConsoleProcess) -> Iterator[NewPages]:
    """Windows of users who have not signed in; closed after the test."""
    opened: list[ConsolePages] = []

    def create(**options: Any) -> ConsolePages:
        opened.append(ConsolePages(browser, console, CLUSTER, **options))
        return opened[-1]

    yield create
    for each in opened:
        each.close()


@pytest.fixture
def pages(new_pages: NewPages, signed_in: dict[str, Any]) -> Iterator[ConsolePages]:
    """A window of the admin, whose scripts must not complain."""
    window = new_pages(storage_state=signed_in)
    yield window
    assert window.complaints == []
