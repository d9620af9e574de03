"""Users of one broker, from a file that is read again on SIGHUP."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.sasl import log_in
from support.waiting import until
from support.wire import Wire


def settings(file: Path) -> dict[str, object]:
    return {
        "security.protocols": "PLAINTEXT:SASL_PLAINTEXT",
        "security.users_file": file,
        "security.failed_login_delay_ms": 1,
    }


def may(broker: BrokerProcess, user: str, password: str) -> bool:
    with Wire(broker.address) as wire:
        return not log_in(wire, user, password)["error_code"]


def taken(pipe: Path) -> int:
    """The end to write to, once the broker has begun to read."""

    def opened() -> int | None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            assert error.errno == errno.ENXIO, error
            return None

    end = until(opened, "the broker reads")
    assert end is not None
    return end


def write(end: int, content: bytes) -> None:
    os.write(end, content)
    os.close(end)


def test_they_log_in_and_a_changed_file_counts_once_it_is_read_again(new_broker: BrokerFactory, tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# of this broker\nann:the first: one\n\nbob:second\n")
    broker = new_broker(settings(file))
    assert may(broker, "ann", "the first: one")
    assert may(broker, "bob", "second")
    assert not may(broker, "ann", "second")
    file.write_text("ann:third\n")
    assert not may(broker, "ann", "third")
    broker.signal(signal.SIGHUP)
    until(lambda: may(broker, "ann", "third"), "the file is read again")
    assert not may(broker, "bob", "second")
    file.write_text("ann:third\nann:fourth\n")
    broker.signal(signal.SIGHUP)
    until(lambda: "users cannot be read again" in broker.log, "the broker says what is wrong")
    assert "line 2 has the user ann for the second time" in broker.log
    assert may(broker, "ann", "third")
    assert not any(password in broker.log for password in ("the first", "third", "fourth"))


def test_a_change_while_the_file_is_being_read_counts_too(new_broker: BrokerFactory, tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("ann:first\n")
    broker = new_broker(settings(file))
    # It takes the broker as long to read this file as the test wants.
    file.unlink()
    os.mkfifo(file)
    broker.signal(signal.SIGHUP)
    reader = taken(file)
    broker.signal(signal.SIGHUP)
    write(reader, b"ann:second\n")
    until(lambda: may(broker, "ann", "second"), "the file is read")
    write(taken(file), b"ann:third\n")
    until(lambda: may(broker, "ann", "third"), "the file is read once more")


def test_a_file_that_cannot_be_used_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    file = tmp_path / "users"
    for content, said in (("ann:secret\nbob\n", "line 2 is not USER:PASSWORD"), (None, "cannot be read")):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_text(content)
        with pytest.raises(AssertionError, match=said) as refused:
            BrokerProcess(tmp_path / "broker", settings(file)).start()
        assert "secret" not in str(refused.value)
