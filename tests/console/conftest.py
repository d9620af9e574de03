"""A console over one broker, and callers of each role."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute
from starlette.testclient import TestClient

from penstock.console.app import create_app
from penstock.console.console import Console
from penstock.console.settings import ClusterSettings, ConsoleSettings, MessageSettings, PollingSettings
from support.broker_process import BrokerProcess
from support.waiting import PATIENCE_S, until

BASE = "http://127.0.0.1"
CLUSTER = "local"
ROLES = ("none", "viewer", "operator", "admin")


@dataclass(frozen=True)
class RunningConsole:
    """The console with its application; one event loop runs both."""

    console: Console
    client: TestClient
    """Signed in nowhere."""
    tokens: dict[str, str]

    def as_role(self, role: str) -> RoleClient:
        return RoleClient(self.client, self.tokens[role])

    def until_round(self, check: Callable[[Any], bool], what: str) -> None:
        """Waits until the poller's snapshot shows something."""
        until(lambda: check(self.console.clusters[CLUSTER].snapshot), what)


@dataclass(frozen=True)
class RoleClient:
    """Calls the API with a token of one role."""

    client: TestClient
    token: str

    def call(self, method: str, path: str, **more: Any) -> Any:
        headers = {"authorization": f"Bearer {self.token}", **more.pop("headers", {})}
        self.client.cookies.clear()
        return self.client.request(method, f"/api{path}", headers=headers, **more)

    def get(self, path: str, **params: Any) -> Any:
        answer = self.call("GET", path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, json: Any = None, status: int = 200) -> Any:
        answer = self.call("POST", path, json=json)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None


def console_settings(broker: str, folder: Path, lake: str = "", **more: Any) -> ConsoleSettings:
    return ConsoleSettings(
        clusters=(ClusterSettings(CLUSTER, broker, lake=lake),),
        data=folder,
        polling=PollingSettings(interval_ms=200, timeout_s=PATIENCE_S),
        **more,
    )


def sign_in_once(console: Console, client: TestClient) -> None:
    """Gives the client a session of the first admin."""
    client.cookies.clear()
    answer = client.post("/login", data={"token": console.new_one_time_token()}, follow_redirects=False)
    assert answer.status_code == 303, answer.text


def csrf_of(client: TestClient) -> str:
    return str(client.get("/api/account").json()["csrf"])


_routes: list[BaseRoute] = []


def app_of(console: Console) -> FastAPI:
    """The application, with the routes of the first one: what FastAPI makes of them takes longer than most tests."""
    app = create_app(console)
    if not _routes:
        _routes.extend(app.router.routes)
    app.router.routes[:] = _routes
    return app


@contextmanager
def running_console(settings: ConsoleSettings) -> Iterator[RunningConsole]:
    """A console with a user and a token of each role."""
    console = Console(settings)
    with TestClient(app_of(console), base_url=BASE) as client:
        sign_in_once(console, client)
        csrf = {"x-csrf-token": csrf_of(client)}
        made = client.post("/api/account/tokens", json={"label": "admin", "role": "admin"}, headers=csrf)
        tokens = {"admin": made.json()["text"]}
        client.cookies.clear()
        running = RunningConsole(console, client, tokens)
        for role in ROLES:
            if role != "admin":
                tokens[role] = token_of(running, f"{role}-user", role)
        running.until_round(lambda snapshot: snapshot.round > 0 and snapshot.is_reachable, "the first round has ended")
        yield running


@pytest.fixture(scope="module")
def running(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    # Fuzzing follows topics too, which would go on for an hour.
    messages = MessageSettings(tail_ms=2_000)
    settings = console_settings(broker.kafka, tmp_path_factory.mktemp("console"), messages=messages)
    with running_console(settings) as running:
        yield running


def token_of(running: RunningConsole, name: str, role: str, token_role: str | None = None, **more: Any) -> str:
    """A user of a role, and a token that it made itself; `more` is what else the user has, such as grants."""
    password = "a long enough password"
    running.as_role("admin").post("/users", {"name": name, "role": role, "password": password, **more}, status=201)
    client = running.client
    answer = client.post("/login", data={"name": name, "password": password}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    made = client.post(
        "/api/account/tokens",
        json={"label": role, "role": token_role or role},
        headers={"x-csrf-token": csrf_of(client)},
    )
    client.cookies.clear()
    return str(made.json()["text"])


def now_ms() -> int:
    return time.time_ns() // 1_000_000
