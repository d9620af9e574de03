"""kcat: librdkafka as Debian ships it, older than the one in confluent-kafka, from the command line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from support.broker_process import BrokerProcess
from support.programs import required_program, run
from support.wire import Wire

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

Kcat = Callable[..., CompletedProcess[bytes]]


@pytest.fixture
def kcat(broker: BrokerProcess) -> Kcat:
    program = required_program("kcat")

    def call(*arguments: str, stdin: bytes = b"") -> CompletedProcess[bytes]:
        return run([program, "-b", broker.kafka, *arguments], stdin)

    return call


@pytest.fixture
def created(broker: BrokerProcess, topic: str) -> str:
    with Wire(broker.address) as wire:
        wire.create_topic(topic, partitions=2)
    return topic


def output(done: CompletedProcess[bytes]) -> bytes:
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def produce(kcat: Kcat, topic: str, lines: bytes, *options: str) -> None:
    output(kcat("-P", "-t", topic, "-p", "0", *options, stdin=lines))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_what_is_produced_is_consumed(kcat: Kcat, created: str, acks: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(1000))
    produce(kcat, created, lines, "-X", f"acks={acks}")
    assert output(kcat("-C", "-t", created, "-p", "0", "-o", "beginning", "-c", "1000", "-q")) == lines


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_survives_the_way(kcat: Kcat, created: str, codec: str) -> None:
    lines = b"".join(b"line %d " % number * 20 + b"\n" for number in range(500))
    produce(kcat, created, lines, "-z", codec)
    assert output(kcat("-C", "-t", created, "-p", "0", "-o", "beginning", "-e", "-q")) == lines


def test_an_idempotent_producer_is_served(kcat: Kcat, created: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(1000))
    produce(kcat, created, lines, "-X", "enable.idempotence=true")
    assert output(kcat("-C", "-t", created, "-p", "0", "-o", "beginning", "-e", "-q")) == lines


def test_keys_headers_and_null_values_are_kept(kcat: Kcat, created: str) -> None:
    produce(kcat, created, b"key:value\ntombstone:\n", "-K", ":", "-Z", "-H", "name=text", "-H", "other=1")
    found = [
        json.loads(line)
        for line in output(kcat("-C", "-t", created, "-p", "0", "-o", "beginning", "-e", "-q", "-J")).splitlines()
    ]
    assert [(one["key"], one["payload"]) for one in found] == [("key", "value"), ("tombstone", None)]
    assert found[0]["headers"] == ["name", "text", "other", "1"]
    assert [one["offset"] for one in found] == [0, 1]


def test_a_reader_begins_where_it_is_told(kcat: Kcat, created: str) -> None:
    produce(kcat, created, b"".join(b"%d\n" % number for number in range(10)))

    def read_from(offset: str) -> bytes:
        return output(kcat("-C", "-t", created, "-p", "0", "-o", offset, "-e", "-q"))

    assert read_from("7") == b"7\n8\n9\n"
    assert read_from("-2") == b"8\n9\n"
    assert read_from("end") == b""
    since = int(time.time() * 1000) - 3_600_000
    assert read_from(f"s@{since}").startswith(b"0\n")


def test_offsets_are_looked_up_by_time(kcat: Kcat, created: str) -> None:
    produce(kcat, created, b"a\nb\n")
    beginning, end = int(time.time() * 1000) - 3_600_000, int(time.time() * 1000) + 3_600_000
    assert b"offset 0" in output(kcat("-Q", "-t", f"{created}:0:{beginning}"))
    assert b"offset -1" in output(kcat("-Q", "-t", f"{created}:0:{end}"))
    assert b"offset 2" in output(kcat("-Q", "-t", f"{created}:0:-1"))


def test_a_large_message_arrives_whole(kcat: Kcat, broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic, max_message_bytes=6_000_000)
    message = tmp_path / "message"
    message.write_bytes(os.urandom(5_000_000))
    output(kcat("-P", "-t", topic, "-p", "0", "-X", "message.max.bytes=6000000", str(message)))
    found = output(kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", "1", "-q", "-D", ""))
    assert found == message.read_bytes()


def test_the_cluster_and_its_topics_are_listed(kcat: Kcat, broker: BrokerProcess, created: str) -> None:
    listed = json.loads(output(kcat("-L", "-J")))
    assert [node["name"] for node in listed["brokers"]] == [broker.kafka]
    described = {one["topic"]: one["partitions"] for one in listed["topics"]}
    assert [one["partition"] for one in described[created]] == [0, 1]
    assert {one["leader"] for one in described[created]} == {1}


def test_a_message_larger_than_the_topic_allows_is_refused(kcat: Kcat, broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic, max_message_bytes=1000)
    done = kcat("-P", "-t", topic, "-p", "0", stdin=b"x" * 5000)
    assert b"Message size too large" in done.stderr


def test_an_offset_out_of_range_is_an_error_where_no_reset_is_wanted(kcat: Kcat, created: str) -> None:
    produce(kcat, created, b"only\n")
    done = kcat("-C", "-t", created, "-p", "0", "-o", "100", "-e", "-X", "auto.offset.reset=error")
    assert b"out of range" in done.stderr
    assert output(
        kcat("-C", "-t", created, "-p", "0", "-o", "100", "-e", "-q", "-X", "auto.offset.reset=earliest")
    ).startswith(b"only")


def test_an_invalid_topic_name_is_refused(kcat: Kcat) -> None:
    done = kcat("-P", "-t", "not a name", "-X", "message.timeout.ms=5000", stdin=b"x")
    assert done.returncode != 0
    assert b"nvalid topic" in done.stderr
