"""`penstock send` and `penstock tail` as they are run, against a real broker."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from support.broker_process import BrokerProcess
from support.programs import PENSTOCK, dying_with_us, environment, run
from support.waiting import until
from support.wire import Wire

Penstock = Callable[..., CompletedProcess[bytes]]


@pytest.fixture
def penstock(broker: BrokerProcess) -> Penstock:
    def call(*arguments: str, stdin: bytes = b"") -> CompletedProcess[bytes]:
        return run([PENSTOCK, *arguments, "-b", broker.kafka], stdin)

    return call


@pytest.fixture
def created(broker: BrokerProcess, topic: str) -> str:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
    return topic


def said(done: CompletedProcess[bytes]) -> str:
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def values(penstock: Penstock, topic: str, *options: str) -> list[str]:
    return said(penstock("tail", topic, "--format", "%v", *options)).splitlines()


def test_arguments_are_sent_and_each_landing_is_told(penstock: Penstock, created: str) -> None:
    assert said(penstock("send", created, "one", "two")) == f"{created}-0 @0\n{created}-0 @1\n"
    assert values(penstock, created, "--from", "beginning") == ["one", "two"]


def test_lines_of_standard_input_are_sent(penstock: Penstock, created: str) -> None:
    said(penstock("send", created, "--quiet", stdin=b"one\ntwo\r\n\nlast"))
    assert values(penstock, created, "--from", "beginning") == ["one", "two", "", "last"]


def test_lines_of_a_file_are_sent_with_keys_cut_from_them(penstock: Penstock, created: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a=1\nb=2\n")
    said(penstock("send", created, "--file", str(file), "--key-separator", "="))
    assert said(penstock("tail", created, "--from", "beginning", "--format", "%k>%v")) == "a>1\nb>2\n"
    file.write_bytes(b"a=1\nnothing to cut\n")
    done = penstock("send", created, "--file", str(file), "--key-separator", "=")
    assert done.returncode == 1
    assert b"message 2: has no key separator" in done.stderr
    missing = penstock("send", created, "--file", str(tmp_path / "missing"))
    assert missing.returncode == 1
    assert b"cannot be read" in missing.stderr


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_made_up_messages_are_counted(penstock: Penstock, created: str, compression: str) -> None:
    done = penstock("send", created, "--count", "5000", "--size", "64", "--compression", compression)
    assert said(done) == f"5000 messages of 320000 bytes landed in {created}\n"
    assert len(values(penstock, created, "--from", "beginning")) == 5000


def test_keys_and_headers_are_shown_in_every_format(penstock: Penstock, created: str) -> None:
    said(penstock("send", created, "text", "--key", "k", "-H", "a=1", "-H", "b=2"))
    said(penstock("send", created, "-q", stdin=b"\xff\x00\x1b[2J\n"))
    line, raw = said(penstock("tail", created)).splitlines()
    assert line.startswith(f"{created}-0 @0 20")
    assert line.endswith("k: text {a=1, b=2}")
    # Bytes that would command the terminal are spelled out.
    assert "\x1b" not in raw
    assert raw.endswith(r"\xff\x00\x1b[2J")
    first, second = (json.loads(line) for line in said(penstock("tail", created, "--json")).splitlines())
    assert (first["key"], first["value"], first["headers"]) == ("k", "text", [["a", "1"], ["b", "2"]])
    assert base64.b64decode(second["value"]["base64"]) == b"\xff\x00\x1b[2J"
    pattern = penstock("tail", created, "--count", "1", "--format", "%t/%p/%o/%k/%v/%h/%%")
    assert said(pattern) == f"{created}/0/0/k/text/a=1, b=2/%\n"


def test_reading_begins_where_it_is_told(penstock: Penstock, created: str) -> None:
    said(penstock("send", created, *(str(number) for number in range(20))))
    assert values(penstock, created) == [str(number) for number in range(10, 20)]
    assert values(penstock, created, "--from", "beginning", "--count", "2") == ["0", "1"]
    assert values(penstock, created, "--from", "17") == ["17", "18", "19"]
    assert values(penstock, created, "--from", "-2") == ["18", "19"]
    assert values(penstock, created, "--from", "end") == []
    assert len(values(penstock, created, "--from", "1h ago")) == 20
    assert values(penstock, created, "--from", "2099-01-01T00:00:00Z") == []
    past = penstock("tail", created, "--from", "1000")
    assert said(past) == ""
    assert b"has offsets 0 to 20" in past.stderr


def test_reading_from_a_time_begins_with_the_first_record_of_that_time(penstock: Penstock, created: str) -> None:
    said(penstock("send", created, "before"))
    (first,) = (json.loads(line) for line in said(penstock("tail", created, "--json")).splitlines())
    until(lambda: int(time.time() * 1000) > first["timestamp"] + 1, "the clock has moved on")
    said(penstock("send", created, "after"))
    second = json.loads(said(penstock("tail", created, "--json")).splitlines()[1])
    when = second["timestamp"]
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when // 1000)) + f".{when % 1000:03d}Z"
    assert values(penstock, created, "--from", stamp) == ["after"]


def test_following_prints_what_comes_until_ctrl_c(
    penstock: Penstock, broker: BrokerProcess, created: str, tmp_path: Path
) -> None:
    said(penstock("send", created, "old"))
    output = tmp_path / "output"
    with output.open("wb") as stdout:
        follower = subprocess.Popen(
            dying_with_us([PENSTOCK, "tail", created, "--follow", "--format", "%v", "-b", broker.kafka]),
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=environment() | {"PYTHONUNBUFFERED": "1"},
        )
    try:
        until(lambda: output.read_text() == "old\n", "what is there is printed")
        for number in range(3):
            said(penstock("send", created, f"new {number}"))
        until(lambda: output.read_text() == "old\nnew 0\nnew 1\nnew 2\n", "what comes is printed")
        follower.send_signal(signal.SIGINT)
        _, errors = follower.communicate(timeout=30)
        assert follower.returncode == 130
        assert b"Traceback" not in errors
    finally:
        follower.kill()
        follower.communicate()


def test_a_reader_that_leaves_early_is_no_error(broker: BrokerProcess, penstock: Penstock, created: str) -> None:
    said(penstock("send", created, "--count", "20000"))
    command = f"{PENSTOCK} tail {created} --from beginning -b {broker.kafka} | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, env=environment(), check=False)
    assert done.stdout.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


def test_failures_are_told_message_by_message(penstock: Penstock, broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic, max_message_bytes=1000)
    done = penstock("send", topic, "x" * 3000)
    assert done.returncode == 1
    assert b"message 1: " in done.stderr
    assert f"1 of 1 messages did not reach {topic}".encode() in done.stderr
    nowhere = penstock("send", topic, "x", "--partition", "7")
    assert nowhere.returncode == 1
    assert b"has no partition 7" in nowhere.stderr


def test_tailing_what_is_not_there_says_so(penstock: Penstock, topic: str) -> None:
    done = penstock("tail", topic)
    assert done.returncode == 1
    assert f"there is no topic {topic}".encode() in done.stderr
    for wrong in (["--from", "yesterday-ish"], ["--format", "no letters"]):
        done = penstock("tail", topic, *wrong)
        assert done.returncode == 2
        assert b"expected" in done.stderr
