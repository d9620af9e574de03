"""What systemd is told."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.service_manager import ServiceManager
from penstock.clock import ManualClock


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
        end.setblocking(False)
        yield end


def told(systemd: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(systemd.recv(1000).decode())
        except BlockingIOError:
            return found


def test_it_is_told_when_the_broker_is_ready_and_when_it_stops(systemd: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": systemd.getsockname(), "HOME": "/"}
    manager = ServiceManager.of_environment(environment, ManualClock())
    manager.ready("serving Kafka clients on 127.0.0.1:9092")
    manager.alive()
    manager.stopping()
    assert told(systemd) == [
        "READY=1\nSTATUS=serving Kafka clients on 127.0.0.1:9092",
        "STOPPING=1\nSTATUS=stopping",
    ]
    # Processes that we start must not speak for us.
    assert environment == {"HOME": "/"}


def test_an_address_in_the_abstract_namespace_is_found() -> None:
    name = f"penstock-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}")
        systemd.setblocking(False)
        ServiceManager(f"@{name}", None, ManualClock()).stopping()
        assert told(systemd) == ["STOPPING=1\nSTATUS=stopping"]


def test_a_watchdog_hears_twice_within_its_time_and_no_more(systemd: socket.socket) -> None:
    clock = ManualClock()
    environment = {
        "NOTIFY_SOCKET": systemd.getsockname(),
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(os.getpid()),
    }
    manager = ServiceManager.of_environment(environment, clock)
    manager.alive()
    assert told(systemd) == []
    manager.ready("ready")
    assert told(systemd) == ["READY=1\nSTATUS=ready"]
    for _ in range(600):
        manager.alive()
        clock.advance(100)
    assert told(systemd) == ["WATCHDOG=1"] * 4
    assert environment == {}


@pytest.mark.parametrize("watchdog", [{}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}])
def test_a_watchdog_that_is_not_ours_hears_nothing(systemd: socket.socket, watchdog: dict[str, str]) -> None:
    manager = ServiceManager.of_environment({"NOTIFY_SOCKET": systemd.getsockname(), **watchdog}, ManualClock())
    manager.ready("ready")
    manager.alive()
    assert told(systemd) == ["READY=1\nSTATUS=ready"]


def test_without_a_service_manager_and_with_one_that_is_gone_the_broker_goes_on(tmp_path: Path) -> None:
    ServiceManager.of_environment({}, ManualClock()).ready("ready")
    ServiceManager(str(tmp_path / "nobody"), None, ManualClock()).ready("ready")
