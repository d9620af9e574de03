"""What a log line looks like, for people and for machines."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from penstock import logs

log = logging.getLogger("penstock.storage.segmented")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(format: str, level: str = "info", process: str | None = None) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level, format, stream, process)
    return stream


def test_text_is_time_level_room_message_and_fields() -> None:
    stream = written("text")
    log.info("segment %s", "rolled", extra=logs.fields(partition="orders-0", base_offset=42, note="two words"))
    pattern = (
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO     storage\.segmented  "
        r'segment rolled partition=orders-0 base_offset=42 note="two words"\n'
    )
    assert re.fullmatch(pattern, stream.getvalue())


def test_one_of_several_processes_says_which_it_is() -> None:
    text = written("text", process="broker-2")
    log.info("rolled")
    assert text.getvalue().endswith(" INFO     broker-2 storage.segmented  rolled\n")
    lines = written("json", process="broker-2")
    log.info("rolled", extra=logs.fields(process="forged"))
    assert json.loads(lines.getvalue())["process"] == "broker-2"


def test_a_line_break_cannot_forge_a_second_event() -> None:
    stream = written("text")
    log.warning("no topic %s", "a\nINFO fake", extra=logs.fields(client="b\rc"))
    assert stream.getvalue().count("\n") == 1
    assert r"a\nINFO fake" in stream.getvalue()
    assert r'client="b\rc"' in stream.getvalue()


def test_json_is_one_object_a_line_with_fields_beside_the_message() -> None:
    stream = written("json")
    log.error("append failed", extra=logs.fields(partition="orders-0", position=7, cause=OSError(28, "full")))
    event = json.loads(stream.getvalue())
    assert event.pop("time").endswith("Z")
    assert event == {
        "level": "error",
        "room": "storage.segmented",
        "message": "append failed",
        "partition": "orders-0",
        "position": 7,
        "cause": "[Errno 28] full",
    }


def test_a_field_cannot_replace_the_message() -> None:
    stream = written("json")
    log.info("real", extra=logs.fields(message="forged", level="debug"))
    event = json.loads(stream.getvalue())
    assert (event["message"], event["level"]) == ("real", "info")


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_traceback_stays_attached(format: str) -> None:
    stream = written(format)
    try:
        raise ValueError("torn batch")
    except ValueError:
        log.exception("recovery stopped", extra=logs.fields(segment=3))
    text = stream.getvalue()
    assert "Traceback (most recent call last)" in text
    assert "ValueError: torn batch" in text
    assert (text.count("\n") == 1) == (format == "json")


def test_less_severe_messages_are_left_out() -> None:
    stream = written("text", level="warning")
    log.info("quiet")
    log.warning("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_configuring_twice_does_not_write_twice() -> None:
    first = written("text")
    second = written("json")
    log.info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1
