"""Every page in both themes, at a desk and on a phone: axe finds nothing serious, and nothing sticks out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import expect

from browser.conftest import NewPages
from support.broker_process import BrokerProcess
from support.console_pages import PHONE, ConsolePages
from support.lake import archive_all, archiver_of

TOPIC = "accessible"
PAGES = [
    "/",
    "/topics",
    f"/topics/{TOPIC}",
    f"/topics/{TOPIC}/messages",
    f"/topics/{TOPIC}/settings",
    f"/topics/{TOPIC}/segments",
    "/groups",
    "/messages",
    f"/delayed/{TOPIC}",
    "/dead-letters",
    "/transactions",
    "/brokers",
    "/databases",
    "/cluster-users",
    "/acls",
    "/quotas",
    "/pipeline",
    "/pipeline/tables",
    "/pipeline/sql",
    "/pipeline/reports",
    "/pipeline/replay",
    "/pipeline/jobs",
    "/alerts",
    "/alerts/rules",
    "/jobs",
    "/users",
    "/account",
    "/audit",
]


@pytest.fixture(scope="module", autouse=True)
def some_content(broker: BrokerProcess, lake: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(TOPIC, 3)])[TOPIC].result()
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(20):
        producer.produce(TOPIC, f'{{"number": {number}}}', key=str(number), headers={"penstock-tags": "eu"})
    assert producer.flush(30) == 0
    archive_all(archiver_of(broker, lake, TOPIC))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(new_pages: NewPages, signed_in: dict[str, Any], theme: str) -> None:
    window = new_pages(storage_state=signed_in, color_scheme=theme)
    found = [problem for path in PAGES for problem in _problems(window, path)]
    window.open(f"/topics/{TOPIC}/messages", open="0-0")
    found += window.problems("a message")
    window.open("/topics", create=1)
    found += window.problems("a new topic")
    assert found == []
    assert window.complaints == []


def test_nothing_sticks_out_on_a_phone(new_pages: NewPages, signed_in: dict[str, Any]) -> None:
    window = new_pages(storage_state=signed_in, **PHONE)
    wide = []
    for path in PAGES:
        page = window.open(path)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            wide.append(f"{path} is {width} wide")
    assert wide == []


def test_tables_and_the_tab_in_view_fit_a_phone(new_pages: NewPages, signed_in: dict[str, Any]) -> None:
    window = new_pages(storage_state=signed_in, **PHONE)
    cut = []
    for path in PAGES:
        page = window.open(path)
        wide = page.locator(".grid:not([hidden])").evaluate_all(
            "(grids) => grids.filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.ariaLabel)"
        )
        cut += [f"{path}: table {name!r}" for name in wide]
        for tab in page.locator(".tabs [aria-current]").all():
            expect(tab).to_be_in_viewport(ratio=1)
    assert cut == []


def test_titles_of_numbers_end_where_the_numbers_end(new_pages: NewPages, signed_in: dict[str, Any]) -> None:
    window = new_pages(storage_state=signed_in)
    page = window.open("/topics", text=TOPIC)
    expect(window.row(TOPIC)).to_be_visible()
    ends = page.evaluate("""() => {
        const end = (node) => {
            const range = document.createRange();
            range.selectNodeContents(node);
            return range.getBoundingClientRect().right;
        };
        const titles = [...document.querySelectorAll("th.num button")].map((each) => end(each.firstChild));
        const numbers = [...document.querySelectorAll("tbody tr:first-child td.num")].map(end);
        return titles.map((title, index) => Math.abs(title - numbers[index]));
    }""")
    assert len(ends) == 5 and max(ends) < 1, ends


def _problems(window: ConsolePages, path: str) -> list[str]:
    window.open(path)
    return window.problems(path)
