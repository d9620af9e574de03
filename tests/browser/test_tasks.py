"""Everyday tasks at the console, from the first click to what the cluster did."""

from __future__ import annotations

import re

from confluent_kafka.admin import AdminClient
from playwright.sync_api import expect

from browser.traffic import make_topic, named, running_group
from support.broker_process import BrokerProcess
from support.console_pages import ConsolePages
from support.waiting import until


def test_a_search_by_json_path_finds_the_one_message(pages: ConsolePages, broker: BrokerProcess) -> None:
    topic = named("orders")
    make_topic(broker.kafka, topic, [b'{"id": %d, "sum": %d}' % (number, number * 10) for number in range(50)])
    page = pages.open(f"/topics/{topic}/messages", field="json", detail="$.sum", text="70")
    expect(page.get_by_text("1 found in 50 of 50 messages")).to_be_visible()
    expect(page.locator("#main tbody tr")).to_have_count(1)
    expect(pages.row('"id": 7')).to_be_visible()


def test_an_address_shows_a_partition_from_an_offset(pages: ConsolePages, broker: BrokerProcess) -> None:
    topic = named("orders")
    make_topic(broker.kafka, topic, [b"message %d" % number for number in range(20)])
    page = pages.open(f"/topics/{topic}/messages", partition=0, **{"from": "offset", "offset": 15})
    expect(page.locator("#main tbody tr")).to_have_count(5)
    expect(pages.row("message 15")).to_be_visible()
    pages.open(f"/topics/{topic}/messages", open="0-3")
    expect(page.get_by_role("dialog").get_by_text("message 3", exact=True)).to_be_visible()


def test_a_click_is_not_lost_when_news_come_between_press_and_release(
    pages: ConsolePages, broker: BrokerProcess
) -> None:
    topic = named("orders")
    make_topic(broker.kafka, topic, [])
    page = pages.open("/topics", text=topic)
    box = pages.row(topic).get_by_role("link", name=topic).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    with page.expect_response(lambda answer: "/topics?" in answer.url) as answered:
        pass
    answered.value.finished()
    # The page has taken it in when what is due now has run.
    page.evaluate("new Promise((done) => setTimeout(done, 100))")
    page.mouse.up()
    expect(page).to_have_url(re.compile(f"/topics/{topic}"))


def test_a_group_is_paused_and_resumed(pages: ConsolePages, broker: BrokerProcess) -> None:
    topic, group = named("orders"), named("billing")
    make_topic(broker.kafka, topic, [b"1"])
    with running_group(broker.kafka, group, topic) as read:
        until(lambda: len(read) == 1, "the group has read everything")
        page = pages.open(f"/groups/{group}")
        page.get_by_role("button", name="Pause", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Pause", exact=True).click()
        pages.toast(f"{group} is paused")
        expect(page.get_by_text("This group is paused")).to_be_visible()
        page.get_by_role("button", name="Resume").click()
        pages.toast(f"{group} reads again")


def test_a_setting_is_explained_and_changed(pages: ConsolePages, broker: BrokerProcess) -> None:
    topic = named("orders")
    make_topic(broker.kafka, topic, [])
    page = pages.open(f"/topics/{topic}/settings")
    page.get_by_label("Filter settings").fill("retention.ms")
    pages.row("Milliseconds after its newest record").get_by_role("button").click()
    page.get_by_label("Value").fill("86400000")
    expect(page.get_by_text("That is 1 d.")).to_be_visible()
    page.get_by_role("button", name="Save").click()
    pages.toast("retention.ms is now 86400000")
    expect(pages.row("Milliseconds after its newest record").get_by_text("this topic")).to_be_visible()


def test_a_topic_is_deleted_only_by_its_name(pages: ConsolePages, broker: BrokerProcess) -> None:
    topic = named("orders")
    make_topic(broker.kafka, topic, [b"1"])
    page = pages.open(f"/topics/{topic}")
    page.get_by_role("button", name="More").first.click()
    page.get_by_role("menuitem", name="Delete topic").click()
    delete = page.get_by_role("dialog").get_by_role("button", name="Delete topic")
    expect(delete).to_be_disabled()
    page.get_by_label(f"Type {topic} to confirm").fill(topic[:-1])
    expect(delete).to_be_disabled()
    page.get_by_label(f"Type {topic} to confirm").fill(topic)
    delete.click()
    pages.toast(f"Topic {topic} is deleted")
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is gone")


def test_the_palette_goes_anywhere_by_keyboard(pages: ConsolePages, broker: BrokerProcess) -> None:
    topic = named("findable")
    make_topic(broker.kafka, topic, [])
    page = pages.open("/")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill(topic)
    expect(page.get_by_role("option", name=topic)).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=topic)).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_the_theme_and_the_language_are_kept(pages: ConsolePages) -> None:
    page = pages.open("/topics")
    page.get_by_role("button", name="Theme and language").click()
    page.get_by_role("menuitemradio", name="Dark").click()
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(11, 13, 18)"
    page.get_by_role("button", name="Theme and language").click()
    page.get_by_role("menuitemradio", name="中文").click()
    expect(page.get_by_role("heading", name="主题", exact=True).first).to_be_visible()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
