"""Users, permissions and quotas of a cluster whose clients have to log in, from the first click to what brokers do."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from playwright.sync_api import expect

from browser.conftest import CLUSTER, NewPages
from conftest import running_broker
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
from support.broker_process import BrokerProcess
from support.console_pages import PHONE, ConsolePages
from support.console_process import ConsoleProcess
from support.sasl import librdkafka, sasl_settings
from support.waiting import PATIENCE_S, until


def named(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("secured")
    with running_broker(folder, sasl_settings(folder, authorizer="acls")) as process:
        yield process


@pytest.fixture(scope="module")
def console(secured: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    folder = tmp_path_factory.mktemp("console")
    login = folder / "login.properties"
    lines = [f"{name}={value}" for name, value in librdkafka(secured.kafka).items() if name != "bootstrap.servers"]
    login.write_text("\n".join(lines))
    process = ConsoleProcess(folder, CLUSTER, secured.kafka, ["--settings-file", str(login)])
    try:
        yield process.start()
        process.stop()
        assert "Traceback" not in process.log, process.log
    finally:
        process.kill()


@pytest.fixture(scope="module")
def cluster(secured: BrokerProcess) -> Cluster:
    return Cluster(secured.kafka, settings=librdkafka(secured.kafka))


def allow(cluster: Cluster, name: str, operation: Operation, resource: ResourcePattern) -> None:
    cluster.acls.add([Acl(resource, AclEntry(Principal.user(name), "*", operation, Permission.ALLOW))]).all()


def test_a_user_is_added_logs_in_and_is_removed(pages: ConsolePages, secured: BrokerProcess, cluster: Cluster) -> None:
    name = named("billing")
    page = pages.open("/cluster-users")
    page.get_by_role("button", name="Add user").first.click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Generate a password").click()
    password = page.get_by_label("Password", exact=True).input_value()
    assert len(password) == 24
    page.get_by_role("dialog").get_by_role("button", name="Add user").click()
    pages.toast(f"{name} may log in")
    client = AdminClient(librdkafka(secured.kafka, user=name, password=password))
    assert client.list_topics(timeout=PATIENCE_S).brokers
    allow(cluster, name, Operation.READ, ResourcePattern(ResourceType.TOPIC, "orders"))

    page.get_by_label("Filter users").fill(name)
    expect(page.locator("#main tbody tr")).to_have_count(1)
    page.get_by_role("button", name=f"Change the password of {name}").click()
    page.get_by_label("Password", exact=True).fill("another = password")
    page.get_by_role("dialog").get_by_role("button", name="Change password").click()
    pages.toast(f"The password of {name} is changed")

    page.get_by_role("button", name=f"Remove {name}").click()
    expect(page.get_by_text("1 permission stays: a new user of this name would have it")).to_be_visible()
    page.get_by_label(f"Type {name} to confirm").fill(name)
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    pages.toast(f"{name} is removed")
    until(lambda: name not in [each.name for each in cluster.users.list()], "the user is gone")


def test_a_permission_is_given_asked_about_and_taken_with_a_preview(pages: ConsolePages, cluster: Cluster) -> None:
    name, topic = named("billing"), named("orders")
    allow(cluster, name, Operation.READ, ResourcePattern(ResourceType.TOPIC, topic[:6], PatternType.PREFIXED))
    page = pages.open("/acls", principal=f"User:{name}")
    page.get_by_role("button", name="Add permission").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Principal").fill(name)
    dialog.get_by_label("Name", exact=True).fill(topic)
    expect(dialog.get_by_text("Produce messages, delay and cancel them.")).to_be_visible()
    dialog.get_by_role("checkbox", name="READ Consume").check()
    dialog.get_by_role("checkbox", name="WRITE Produce").check()
    dialog.get_by_role("button", name="Add permission").click()
    pages.toast("2 permissions are added")
    expect(page.locator("#main tbody tr")).to_have_count(3)

    pages.open("/acls/check", principal=name, operation="WRITE", type="TOPIC", name=topic)
    expect(page.get_by_text("Yes, it may")).to_be_visible()
    expect(page.get_by_text(f"ALLOW User:{name} WRITE on topic {topic} from any host")).to_be_visible()
    page.get_by_label("Operation", exact=True).select_option("DELETE")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_text("No, it may not")).to_be_visible()
    assert "operation=DELETE" in page.url, "the address shows the question"

    pages.open("/acls", principal=f"User:{name}", type="TOPIC", name=topic)
    expect(page.locator("#main tbody tr")).to_have_count(3)
    for operation in ("READ", "WRITE"):
        row = page.locator("#main tbody tr", has=page.get_by_text(operation, exact=True))
        row.filter(has=page.get_by_text(f"topic {topic}", exact=True)).get_by_role("checkbox").check()
    page.get_by_role("button", name="Remove 2").click()
    expect(dialog.get_by_role("row", name=f"WRITE topic {topic}")).to_contain_text("may no longer")
    expect(dialog.get_by_role("row", name=f"READ topic {topic}")).to_contain_text("still may")
    dialog.get_by_role("button", name="Remove 2 permissions").click()
    pages.toast("2 permissions are removed")
    expect(page.locator("#main tbody tr")).to_have_count(1)


def test_a_quota_is_set_changed_and_removed(pages: ConsolePages, cluster: Cluster) -> None:
    name = named("importer")
    page = pages.open("/quotas")

    def limits() -> dict[str, float]:
        return next((dict(each.limits) for each in cluster.quotas.list({"client-id": name})), {})

    page.get_by_role("button", name="Set quota").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Of whom").select_option("client-id")
    dialog.get_by_label("client id", exact=True).fill(name)
    dialog.get_by_label("Produce", exact=True).fill("ten")
    dialog.get_by_role("button", name="Set quota").click()
    expect(dialog.get_by_text("Write a number above 0")).to_be_visible()
    dialog.get_by_label("Produce", exact=True).fill("10 MB")
    dialog.get_by_label("Broker's time").fill("12.5")
    dialog.get_by_role("button", name="Set quota").click()
    pages.toast("The quota holds on all brokers from now on")
    assert limits() == {"producer_byte_rate": 10_000_000, "request_percentage": 12.5}
    expect(pages.row(name)).to_contain_text("10 MB/s")

    page.get_by_role("button", name=f"Change client-id '{name}'").click()
    dialog.get_by_label("Broker's time").fill("")
    dialog.get_by_label("Consume", exact=True).fill("500 kB/s")
    dialog.get_by_role("button", name="Save").click()
    expect(pages.row(name)).to_contain_text("500 kB/s")
    assert limits() == {"producer_byte_rate": 10_000_000, "consumer_byte_rate": 500_000}

    page.get_by_role("button", name=f"Remove client-id '{name}'").click()
    dialog.get_by_role("button", name="Remove").click()
    pages.toast("The quota is removed")
    assert limits() == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_sticks_out(
    new_pages: NewPages, signed_in: dict[str, Any], cluster: Cluster, theme: str
) -> None:
    name = named("reader")
    cluster.users.set_password(name, "x")
    allow(cluster, name, Operation.READ, ResourcePattern(ResourceType.TOPIC, "orders-of-a-long-name" * 5))
    cluster.quotas.alter({QuotaEntity(user=name, client_id=""): {"producer_byte_rate": 1e6}}).all()
    window = new_pages(storage_state=signed_in, color_scheme=theme)
    found: list[str] = []
    for path in ("/cluster-users", "/acls", f"/acls/check?principal={name}&operation=READ&name=orders", "/quotas"):
        window.open(path)
        found += window.problems(path)
    for path, button in (("/cluster-users", "Add user"), ("/acls", "Add permission"), ("/quotas", "Set quota")):
        window.open(path).get_by_role("button", name=button).first.click()
        found += window.problems(button)
    page = window.open("/acls", principal=f"User:{name}")
    window.row(name).get_by_role("button", name="Remove").click()
    expect(page.get_by_role("dialog").get_by_text("may no longer")).to_be_visible()
    found += window.problems("a removal")
    assert found == []
    assert window.complaints == []
    phone = new_pages(storage_state=signed_in, color_scheme=theme, **PHONE)
    for path in ("/cluster-users", "/acls", "/acls/check", "/quotas"):
        width = phone.open(path).evaluate("document.documentElement.scrollWidth")
        assert width <= 390, f"{path} is {width} wide"
