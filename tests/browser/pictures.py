"""Takes the pictures of docs/console: every page, in both themes, at a desk and on a phone.

    python -m tests.browser.pictures docs/console [PAGE ...]

A broker and a console of their own run meanwhile, with a small shop's traffic on them.
"""

from __future__ import annotations

import json
import logging
import math
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from PIL import Image
from playwright.sync_api import Page

import penstock
from penstock.admin import (
    Acl,
    AclEntry,
    Cluster,
    Operation,
    PatternType,
    Permission,
    Principal,
    QuotaEntity,
    ResourcePattern,
    ResourceType,
)
from penstock.pipeline.archive.archiver import Archiver
from support.broker_process import BrokerProcess
from support.console_pages import ConsolePages, chromium
from support.console_process import ConsoleProcess
from support.lake import archiver_of

CLUSTER = "shop"
SECONDS = 60
EXACT_COLOURS = 64
OTHER_COLOURS = 128
ARCHIVED_EVERY_S = 5
TOPICS = {
    "orders": (6, 20),
    "payments.settled": (12, 16),
    "clickstream.web": (12, 40),
    "search.index-updates": (6, 8),
    "mail.outbox": (3, 8),
    "fraud.scores": (6, 9),
    "billing.invoices": (3, 4),
    "loyalty.points": (3, 2),
    "catalogue.price-changes": (3, 2),
    "audit.access-log": (1, 5),
}
GROUPS = {
    "billing-writer": ("orders", 0.0),
    "fraud-scorer": ("payments.settled", 0.09),
    "search-indexer": ("search.index-updates", 0.0),
    "email-sender": ("mail.outbox", 0.16),
}
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "segments": "/topics/orders/segments",
    "settings": "/topics/orders/settings",
    "messages": "/topics/orders/messages",
    "groups": "/groups",
    "group": "/groups/fraud-scorer",
    "delayed": "/delayed/orders",
    "dead-letters": "/dead-letters/invoice-mailer",
    "transactions": "/transactions",
    "brokers": "/brokers",
    "databases": "/databases",
    "cluster-users": "/cluster-users",
    "acls": "/acls",
    "acl-check": "/acls/check?principal=billing&operation=READ&type=TOPIC&name=payments.settled",
    "quotas": "/quotas",
    "pipeline": "/pipeline",
    "pipeline-sql": "/pipeline/sql",
    "pipeline-reports": "/pipeline/reports",
    "pipeline-replay": "/pipeline/replay",
    "alerts": "/alerts/rules",
    "jobs": "/jobs",
    "users": "/users",
    "audit": "/audit",
}
ARCHIVED = ("orders", "payments.settled", "mail.outbox", "fraud.scores", "billing.invoices")
SPARK_MS = 300_000
QUERY = """select partition, count(*) as messages, min(timestamp) as oldest, max(timestamp) as newest,
  round(sum(cast(get_json_object(cast(value as string), '$.total') as double)), 2) as turnover
from orders
group by partition
order by partition"""
DESK: dict[str, Any] = {"viewport": {"width": 1280, "height": 860}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}


AUTHORIZER = {"security.authorizer": "acls", "security.super_users": "User:ANONYMOUS;User:admin"}
"""Nobody has to log in; who does not is a super user."""
USERS = ("billing", "fraud-scorer", "warehouse")
ACLS = (
    ("billing", Operation.READ, ResourcePattern(ResourceType.TOPIC, "payments.", PatternType.PREFIXED)),
    ("billing", Operation.READ, ResourcePattern(ResourceType.TOPIC, "payments.settled")),
    ("billing", Operation.WRITE, ResourcePattern(ResourceType.TOPIC, "billing.invoices")),
    ("billing", Operation.READ, ResourcePattern(ResourceType.GROUP, "billing-", PatternType.PREFIXED)),
    ("fraud-scorer", Operation.READ, ResourcePattern(ResourceType.TOPIC, "orders")),
    ("fraud-scorer", Operation.WRITE, ResourcePattern(ResourceType.TOPIC, "fraud.scores")),
    ("fraud-scorer", Operation.WRITE, ResourcePattern(ResourceType.TRANSACTIONAL_ID, "fraud-", PatternType.PREFIXED)),
    ("*", Operation.DESCRIBE, ResourcePattern(ResourceType.TOPIC, "*")),
)
QUOTAS = (
    (QuotaEntity(user="warehouse"), {"consumer_byte_rate": 50e6, "request_percentage": 25.0}),
    (QuotaEntity(client_id="importer"), {"producer_byte_rate": 10e6}),
    (QuotaEntity(user="billing", client_id=""), {"producer_byte_rate": 5e6, "controller_mutation_rate": 2.0}),
    (QuotaEntity(ip=""), {"connection_creation_rate": 50.0}),
)


class Shop:
    """Traffic: producers at their own pace, groups of which some are slow, failures, delayed messages."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._random = random.Random(7)
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._settling: list[Producer] = []

    def open(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        for made in admin.create_topics([NewTopic(name, count) for name, (count, _) in TOPICS.items()]).values():
            made.result()
        self._settle()
        work: list[tuple[Callable[..., None], tuple[object, ...]]] = [(self._sell, ()), (self._fail, ())]
        work += [(self._read, (group, topic, pause)) for group, (topic, pause) in GROUPS.items()]
        for target, arguments in work:
            self._threads.append(threading.Thread(target=target, args=arguments, daemon=True))
            self._threads[-1].start()

    def close(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _settle(self) -> None:
        """A transaction that is committed, and one that stays open."""
        for name in ("fraud-batch", "loyalty-settlement"):
            settings = {"transactional.id": name, "transaction.timeout.ms": 900_000, "log_level": 0}
            producer = Producer({"bootstrap.servers": self._bootstrap, **settings})
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce("loyalty.points", self._order(0))
            producer.flush(30)
            self._settling.append(producer)
        self._settling[0].commit_transaction(30)

    def _order(self, number: int) -> str:
        some = self._random
        return json.dumps(
            {
                "id": f"o-{100_000 + number}",
                "customer": {"id": f"c-{some.randint(1, 400)}", "country": some.choice(["DE", "FR", "NL", "SE"])},
                "items": [{"sku": f"SKU-{some.randint(100, 999)}", "quantity": some.randint(1, 4)}],
                "total": round(some.uniform(5, 250), 2),
            }
        )

    def _sell(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 20})
        for number in range(40):
            minutes = 2 + int(170 * self._random.random() ** 2)
            headers: list[tuple[str, str | bytes | None]] = [
                ("penstock-delay", f"{minutes}m"),
                ("penstock-timer-id", f"close-o-{100_000 + number}"),
            ]
            producer.produce("orders", self._order(number), key=f"c-{number}", headers=headers)
        number = 0
        while not self._is_over.wait(0.5):
            wave = 0.75 + 0.35 * math.sin(time.time() / 9)
            for topic, (_, rate) in TOPICS.items():
                for _ in range(max(1, int(rate * wave * self._random.uniform(0.8, 1.2) / 2))):
                    number += 1
                    tags = self._random.choice(["eu", "eu,checkout", "us"])
                    key = f"c-{self._random.randint(1, 400)}"
                    producer.produce(topic, self._order(number), key=key, headers={"penstock-tags": tags})
            producer.poll(0)
        producer.flush(10)

    def _read(self, group: str, topic: str, pause_s: float) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "client.id": f"{group}-1",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
            }
        )
        consumer.subscribe([topic])
        while not self._is_over.is_set():
            read = consumer.consume(10, 0.2)
            self._is_over.wait(pause_s * len(read))
        consumer.close()

    def _fail(self) -> None:
        with penstock.Client(self._bootstrap) as client:

            @client.subscribe(
                "billing.invoices", group="invoice-mailer", retries=penstock.Retries(first="100ms", attempts=2)
            )
            def mail(message: penstock.Message) -> None:
                country = json.loads(message.value or b"{}")["customer"]["country"]
                if country == "DE":
                    raise ValueError("customer has no mail address")
                if country == "SE":
                    raise ConnectionError("smtp.example: connection refused")

            client.start()
            self._is_over.wait(SECONDS / 2)


def main(folder: Path, wanted: Sequence[str] = ()) -> None:
    logging.disable(logging.CRITICAL)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = BrokerProcess(scratch / "broker", AUTHORIZER).start()
        stack.callback(broker.kill)
        give_access(broker.kafka)
        shop = Shop(broker.kafka)
        shop.open()
        stack.callback(shop.close)
        # Its path is in the pictures.
        lake = Path(tempfile.gettempdir()) / "shop-lake"
        shutil.rmtree(lake, ignore_errors=True)
        stack.callback(shutil.rmtree, lake, ignore_errors=True)
        known_lake = ["--lake", f"{CLUSTER}={lake}"]
        console = ConsoleProcess(scratch / "console", CLUSTER, broker.kafka, known_lake).start()
        stack.callback(console.kill)
        browser = stack.enter_context(chromium())
        first = ConsolePages(browser, console, CLUSTER, **DESK).sign_in_once()
        prepare(first)
        time.sleep(SECONDS / 2)
        stack.enter_context(archiving(archiver_of(broker, lake, *ARCHIVED)))
        time.sleep(SECONDS / 2)
        pages = PAGES | pipeline_work(first, wanted)
        state = first.context.storage_state()
        for device, options in (("desk", DESK), ("phone", PHONE)):
            for theme in ("light", "dark"):
                window = ConsolePages(browser, console, CLUSTER, storage_state=state, color_scheme=theme, **options)
                for name, path in pages.items():
                    if wanted and name not in wanted:
                        continue
                    with opened(window, path) as page:
                        save(page, folder / f"{name}-{device}-{theme}.png")
                if device == "desk" and not wanted:
                    details(window, folder, theme)
                if device == "desk" and (not wanted or "acls" in wanted):
                    access_details(window, folder, theme)
                window.close()


@contextmanager
def archiving(archiver: Archiver) -> Iterator[None]:
    """Batch by batch, as long as the shop sells: there is always more, so nobody waits for the end. The lake is there
    when this begins.
    """
    archiver.run_batch()
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(ARCHIVED_EVERY_S):
            archiver.run_batch()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def give_access(bootstrap: str) -> None:
    """Users, permissions and quotas of the shop's cluster."""
    cluster = Cluster(bootstrap)
    for name in USERS:
        cluster.users.set_password(name, "a long pass phrase")
    acls = [
        Acl(resource, AclEntry(Principal.user(name), "*", operation, Permission.ALLOW))
        for name, operation, resource in ACLS
    ]
    denied = AclEntry(Principal.user("billing"), "10.9.0.4", Operation.READ, Permission.DENY)
    cluster.acls.add([*acls, Acl(ResourcePattern(ResourceType.TOPIC, "payments.settled"), denied)]).all()
    cluster.quotas.alter(dict(QUOTAS)).all()


def access_details(window: ConsolePages, folder: Path, theme: str) -> None:
    """The form for a permission, and what a removal changes."""
    with opened(window, "/acls") as page:
        page.get_by_role("button", name="Add permission").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Principal").fill("User:warehouse")
        dialog.get_by_label("Name", exact=True).fill("orders")
        dialog.get_by_role("checkbox", name="READ Consume").check()
        save(page, folder / f"acl-add-desk-{theme}.png")
    with opened(window, "/acls?principal=User:billing") as page:
        for row in page.locator("#main tbody tr").filter(has_not=page.get_by_text("prefix", exact=True)).all():
            row.get_by_role("checkbox").check()
        page.get_by_role("button", name="Remove 3").click()
        page.get_by_role("dialog").get_by_text("may no longer").first.wait_for()
        save(page, folder / f"acl-removal-desk-{theme}.png")


def prepare(window: ConsolePages) -> None:
    """An alert rule and a user, so that their pages show some."""
    page = window.open("/alerts/rules")
    page.get_by_role("button", name="New rule").first.click()
    page.get_by_label("Name", exact=True).fill("Fraud scoring falls behind")
    page.get_by_label("Fires above").fill("300")
    page.get_by_label("For (seconds)").fill("5")
    page.get_by_label("Names that begin with").fill("fraud")
    page.get_by_role("button", name="Add rule").click()
    window.toast("is checked from now on")
    page = window.open("/users")
    page.get_by_role("button", name="New user").click()
    page.get_by_label("Name", exact=True).fill("mei")
    page.get_by_label("Password", exact=True).fill("a long pass phrase")
    page.get_by_role("radio", name="Operator").check()
    page.get_by_role("button", name="Create user").click()
    window.toast("may come in")


def pipeline_work(window: ConsolePages, wanted: Sequence[str]) -> dict[str, str]:
    """A query, a report and a dry run; gives the addresses that show them."""
    work = {"pipeline-sql": ask_query, "pipeline-reports": run_report, "pipeline-replay": plan_replay}
    found = {}
    for name, start in work.items():
        if not wanted or name in wanted:
            page = start(window)
            found[name] = f"{PAGES[name]}?{page.url.partition('?')[2]}"
    return found


def ask_query(window: ConsolePages) -> Page:
    page = window.open("/pipeline/sql")
    page.get_by_role("textbox", name="Query").fill(QUERY)
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator("#main tbody tr").first.wait_for(timeout=SPARK_MS)
    return page


def run_report(window: ConsolePages) -> Page:
    page = window.open("/pipeline/reports")
    page.get_by_role("button", name="Run a report").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Computed").wait_for(timeout=SPARK_MS)
    return page


def plan_replay(window: ConsolePages) -> Page:
    page = window.open("/pipeline/replay")
    page.get_by_label("From topic").fill("orders")
    page.get_by_label("To topic").fill("audit.access-log")
    page.get_by_label("Tags").fill("eu")
    page.get_by_role("button", name="Dry run").click()
    page.get_by_role("button", name="Send them").wait_for(timeout=SPARK_MS)
    return page


def details(window: ConsolePages, folder: Path, theme: str) -> None:
    """Dialogs and drawers."""
    with opened(window, "/groups/fraud-scorer") as page:
        page.get_by_role("button", name="Reset offsets").click()
        page.get_by_role("button", name="Preview").click()
        page.get_by_text("messages will be read again").wait_for()
        save(page, folder / f"reset-desk-{theme}.png")
    with opened(window, "/topics/orders/messages") as page:
        page.locator("#main tbody tr").first.get_by_role("button").click()
        save(page, folder / f"message-desk-{theme}.png")
    with opened(window, "/") as page:
        page.keyboard.press("Control+k")
        page.get_by_role("combobox").fill("order")
        page.get_by_role("option", name="orders").first.wait_for()
        save(page, folder / f"palette-desk-{theme}.png")
    with opened(window, "/topics?create=1") as page:
        page.get_by_label("Name", exact=True).fill("orders.returns")
        save(page, folder / f"new-topic-desk-{theme}.png")


@contextmanager
def opened(window: ConsolePages, path: str) -> Iterator[Page]:
    page = window.open(path)
    page.wait_for_load_state("networkidle")
    yield page
    page.evaluate("document.querySelectorAll('dialog[open]').forEach((each) => each.close())")


def save(page: Page, path: Path) -> None:
    """As a picture of few colours, which pages of flat colours do not show."""
    of_few_colours(Image.open(BytesIO(page.screenshot()))).save(path, optimize=True)
    print(path, path.stat().st_size)


def of_few_colours(picture: Image.Image) -> Image.Image:
    """Those that fill most of it as they are. All others become the nearest of some that are spread over all of them,
    however little each fills: a dot keeps its colour.
    """
    flat = picture.convert("RGB")
    counted: Any = flat.getcolors(flat.width * flat.height)
    by_size = [colour for _, colour in sorted(counted, reverse=True)]
    exact = [part for colour in by_size[:EXACT_COLOURS] for part in colour]
    rare = Image.new("RGB", (len(by_size), 1))
    rare.putdata(by_size)
    others = rare.quantize(OTHER_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*exact, *others])
    return flat.quantize(palette=palette, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
