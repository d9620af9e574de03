"""`penstock push` between a real broker and a real HTTP endpoint."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.commands import complaint
from support.endpoint import Answer, Endpoint, Posted, endpoint
from support.programs import PENSTOCK, run
from support.push_process import pushing
from support.waiting import until

SECRET = "0123456789abcdef0123456789abcdef"
DOCS = Path(__file__).parents[2] / "docs" / "push.md"


class Behaviour:
    """What the endpoint does with a message is said by its value; deliveries are counted."""

    def __init__(self) -> None:
        self._seen: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def __call__(self, posted: Posted) -> Answer | None:
        with self._lock:
            self._seen[posted.body] += 1
            times = self._seen[posted.body]
        word = posted.body.split(b":")[0]
        if word == b"second-time" and times == 1:
            return Answer(500, body=b"not today")
        if word == b"silence-first" and times == 1:
            return None
        if word == b"gone":
            return Answer(410, body=b"nobody lives here")
        if word == b"never":
            return Answer(500)
        if word == b"moved":
            return Answer(302, {"location": "/elsewhere"})
        return Answer(204)


@pytest.fixture(scope="module")
def hook() -> Iterator[Endpoint]:
    with endpoint(Behaviour()) as started:
        yield started


@pytest.fixture(scope="module")
def pushed_topic(broker: BrokerProcess, hook: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A topic that a running push delivers to the hook, signed, with at most two attempts."""
    topic, folder = "push-orders", tmp_path_factory.mktemp("push")
    make_topic(broker, topic, 2)
    secret = folder / "secret"
    secret.write_text(SECRET)
    arguments = ["--group", "push-web", "--secret-file", str(secret), "--attempts", "2", "--first", "100ms"]
    with pushing(
        folder, topic, hook.url, *arguments, "--timeout", "700ms", "--from-beginning", "-b", broker.kafka
    ) as process:
        yield topic
        counts = process.stop()
    assert counts["delivered"] > 0
    assert counts["received"] == counts["delivered"] + counts["dead_letters"]


def make_topic(broker: BrokerProcess, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def send(broker: BrokerProcess, topic: str, *values: bytes, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka})
    for value in values:
        producer.produce(topic, value, **more)
    assert producer.flush(30) == 0


def read_all(broker: BrokerProcess, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "push-reader", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        found: list[Any] = []

        def enough() -> bool:
            found.extend(each for each in consumer.consume(100, 0.2) if each.error() is None)
            return len(found) >= count

        until(enough, f"{topic} has {count} messages")
        return found
    finally:
        consumer.close()


def test_a_message_is_posted_once_with_everything_that_it_has(
    broker: BrokerProcess, pushed_topic: str, hook: Endpoint
) -> None:
    headers = [("penstock-tags", b"checkout,eu"), ("penstock-biz-id", b"order-42"), ("Trace", b"\xff x")]
    send(broker, pushed_topic, b"fine:1", key=b"k\xc3\xa4", headers=headers, partition=1, timestamp=1_700_000_000_000)
    until(lambda: hook.posted(b"fine:1"), "the message is posted")
    (posted,) = hook.posted(b"fine:1")
    assert posted.path == "/hook"
    assert posted.headers["penstock-topic"] == pushed_topic
    assert posted.headers["penstock-partition"] == "1"
    assert posted.headers["penstock-offset"].isdigit()
    assert posted.headers["penstock-key"] == "k%C3%A4"
    assert posted.headers["penstock-timestamp"] == "1700000000000"
    assert (posted.headers["penstock-attempt"], posted.headers["penstock-attempts"]) == ("1", "2")
    assert posted.headers["penstock-tags"] == "checkout,eu"
    assert posted.headers["penstock-biz-id"] == "order-42"
    assert posted.headers["penstock-header-%54race"] == "%FF%20x"


def test_the_documented_lines_check_the_signature_and_refuse_old_and_changed_requests(
    broker: BrokerProcess, pushed_topic: str, hook: Endpoint
) -> None:
    send(broker, pushed_topic, b"fine:signed")
    until(lambda: hook.posted(b"fine:signed"), "the message is posted")
    (posted,) = hook.posted(b"fine:signed")
    code = re.search(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert code is not None
    place: dict[str, Any] = {}
    exec(code[1], place)
    is_ours, header = place["is_ours"], posted.headers["penstock-signature"]
    assert is_ours(SECRET.encode(), header, posted.body)
    assert not is_ours(SECRET.encode(), header, posted.body + b"!")
    assert not is_ours(b"another secret", header, posted.body)
    old = header.replace(header[2:12], str(int(time.time()) - 3600))
    assert not is_ours(SECRET.encode(), old, posted.body)


def test_connections_are_kept(broker: BrokerProcess, pushed_topic: str, hook: Endpoint) -> None:
    values = [b"fine:kept-%d" % number for number in range(100)]
    send(broker, pushed_topic, *values)
    until(lambda: all(hook.posted(value) for value in values), "all are posted")
    connections = {each.connection for value in values for each in hook.posted(value)}
    assert len(connections) <= 16


def test_a_failed_delivery_comes_again_and_holds_up_nobody(
    broker: BrokerProcess, pushed_topic: str, hook: Endpoint
) -> None:
    send(broker, pushed_topic, b"second-time:1", b"fine:behind", partition=0)
    until(lambda: len(hook.posted(b"second-time:1")) == 2, "the message is posted again")
    first, second = hook.posted(b"second-time:1")
    assert (first.headers["penstock-attempt"], second.headers["penstock-attempt"]) == ("1", "2")
    # It is the same message, wherever it has waited.
    for name in ("penstock-topic", "penstock-partition", "penstock-offset", "penstock-timestamp"):
        assert first.headers[name] == second.headers[name]
    assert hook.requests.index(hook.posted(b"fine:behind")[0]) < hook.requests.index(second)


def test_silence_is_a_failure(broker: BrokerProcess, pushed_topic: str, hook: Endpoint) -> None:
    send(broker, pushed_topic, b"silence-first:1")
    until(lambda: len(hook.posted(b"silence-first:1")) == 2, "the message is posted again")


def test_what_is_refused_or_fails_too_often_is_a_dead_letter(
    broker: BrokerProcess, pushed_topic: str, hook: Endpoint
) -> None:
    send(broker, pushed_topic, b"gone:1", b"never:1", b"moved:1")
    letters = {letter.value(): dict(letter.headers()) for letter in read_all(broker, "push-web.dead", 3)}
    assert letters[b"gone:1"]["penstock-error"] == b"HTTP 410 Gone: nobody lives here"
    assert letters[b"gone:1"]["penstock-attempt"] == b"1"
    assert letters[b"never:1"]["penstock-error"] == b"HTTP 500 Internal Server Error"
    assert letters[b"never:1"]["penstock-attempt"] == b"2"
    assert b"redirects are not followed" in letters[b"moved:1"]["penstock-error"]
    assert letters[b"never:1"]["penstock-origin"].startswith(f"{pushed_topic}/".encode())
    assert [len(hook.posted(value)) for value in (b"gone:1", b"never:1", b"moved:1")] == [1, 2, 2]
    assert all(each.path == "/hook" for each in hook.requests)


def test_a_batch_is_one_request_and_comes_when_the_endpoint_wants_it(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    make_topic(broker, topic)
    send(broker, topic, *(b"%d" % number for number in range(20)), key=b"k")
    asked: list[list[dict[str, Any]]] = []

    def answering(posted: Posted) -> Answer:
        asked.append(json.loads(posted.body))
        # Without this word the next try would be in an hour.
        return Answer(503, {"retry-after": "1"}) if len(asked) == 1 else Answer(200)

    def delivered() -> set[str]:
        return {each["value"] for batch in asked[1:] for each in batch}

    with (
        endpoint(answering) as hook,
        pushing(
            tmp_path,
            *(topic, hook.url, "--group", topic, "--batch", "10", "--first", "1h", "--concurrency", "1"),
            *("--from-beginning", "-b", broker.kafka),
        ) as process,
    ):
        until(lambda: delivered() == {str(number) for number in range(20)}, "all are delivered")
        counts = process.stop()
    assert (counts["delivered"], counts["retried"], counts["dead_letters"]) == (20, len(asked[0]), 0)
    assert all(len(batch) <= 10 for batch in asked)
    assert len(asked[0]) > 1
    assert {each["attempt"] for batch in asked[1:] for each in batch if each in asked[0]} <= {1, 2}
    assert asked[0][0]["topic"] == topic
    assert asked[0][0]["key"] == "k"


def test_nothing_is_lost_when_push_is_killed_in_the_middle(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    make_topic(broker, topic, 3)
    values = {b"%d" % number for number in range(400)}
    send(broker, topic, *values)
    taken: Counter[bytes] = Counter()
    lock = threading.Lock()

    def answering(posted: Posted) -> Answer:
        time.sleep(0.002)
        with lock:
            taken[posted.body] += 1
            # Every seventh fails once, so that retries are under way too when it dies.
            is_refused = int(posted.body) % 7 == 0 and taken[posted.body] == 1
        return Answer(500 if is_refused else 200)

    # A member with a name takes its own place again: who has none waits until the group has noticed the death.
    settings = tmp_path / "settings"
    settings.write_text("# of librdkafka\ngroup.instance.id=push-1\n")
    arguments = ["--group", topic, "--first", "200ms", "--from-beginning", "-b", broker.kafka, "--concurrency", "4"]
    arguments += ["--settings-file", str(settings)]
    with endpoint(answering) as hook:
        for kill_at in (100, 250):
            with pushing(tmp_path, topic, hook.url, *arguments) as process:
                until(lambda at=kill_at: len(taken) >= at, "some are delivered")
                process.kill()
        with pushing(tmp_path, topic, hook.url, *arguments) as process:
            until(lambda: set(taken) == values, "all are delivered", 60)
            until(lambda: all(taken[value] >= 2 for value in values if int(value) % 7 == 0), "also those that failed")
            assert process.stop()["dead_letters"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ftp://127.0.0.1/"], "expected http:// or https://"),
        (["http://127.0.0.1/", "--secret-file", "/nowhere/at/all"], "cannot be read"),
        (["http://127.0.0.1/", "--ca-file", "/nowhere/at/all"], "certificate authorities"),
    ],
)
def test_what_cannot_work_is_said_at_once(broker: BrokerProcess, arguments: list[str], words: str) -> None:
    done = run([PENSTOCK, "-b", broker.kafka, "push", "orders", *arguments, "--group", "web", "--json"])
    assert words in complaint(done)


def test_without_its_library_push_says_how_to_get_it() -> None:
    without = "import sys; sys.modules['httpx'] = None; from penstock.cli.main import run; sys.exit(run(sys.argv[1:]))"
    done = run([sys.executable, "-c", without, "push", "orders", "http://127.0.0.1/", "-g", "web"])
    assert "pip install 'penstock[push]'" in complaint(done)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--reject-on", "200"], "not a status from 300 to 599"),
        (["--timeout", "0s"], "must be greater than 0"),
        (["--first", "soon"], "'soon' is not a duration"),
    ],
)
def test_options_that_mean_nothing_are_refused(option: list[str], words: str) -> None:
    assert words in complaint(run([PENSTOCK, "push", "orders", "http://127.0.0.1/", "-g", "web", *option]), code=2)


def test_an_endpoint_that_is_down_is_named_with_the_reason_and_again_when_it_is_back(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    is_down = threading.Event()
    is_down.set()
    make_topic(broker, topic)
    send(broker, topic, b"x")
    with endpoint(lambda request: Answer(503 if is_down.is_set() else 204)) as hook:
        arguments = ["--group", topic, "--first", "200ms", "-b", broker.kafka]
        with pushing(tmp_path, topic, hook.url, *arguments) as process:
            until(lambda: f"{hook.url} does not accept messages" in process.log, "it has said so")
            is_down.clear()
            until(lambda: f"{hook.url} accepts messages again, after" in process.log, "it has said that it is over")
            assert process.stop()["delivered"] == 1
    assert process.log.count("does not accept messages") == 1
    assert "HTTP 503 Service Unavailable" in process.log
