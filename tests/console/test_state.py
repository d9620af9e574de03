"""The console's own state in every kind of database that topics can live in."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from penstock.console.console import Console
from support.stores import DatabaseServer

from .conftest import BASE, app_of, console_settings, csrf_of, now_ms, sign_in_once


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_the_console_keeps_its_state_in_a_server(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: DatabaseServer = request.getfixturevalue(kind)
    address = server.create_database(f"console_{uuid.uuid4().hex[:12]}")
    for is_first in (True, False):
        console = Console(console_settings("127.0.0.1:1", tmp_path, database=address))
        with TestClient(app_of(console), base_url=BASE) as client:
            sign_in_once(console, client)
            csrf = {"x-csrf-token": csrf_of(client)}
            password = "correct horse battery"
            made = client.post("/api/users", json={"name": "eve", "role": "viewer", "password": password}, headers=csrf)
            assert made.status_code == (201 if is_first else 409), made.text
            rule = {"part": "json", "topic_prefix": "x_%", "path": "$.a"}
            assert client.post("/api/masking-rules", json=rule, headers=csrf).status_code == 201
            assert len(client.get("/api/masking-rules").json()) == (1 if is_first else 2)
            entries = client.get("/api/audit", params={"operation": "users.", "text": "eve"}).json()["items"]
            assert [entry["outcome"] for entry in entries] == (["done"] if is_first else ["failed", "done"])
            assert client.get("/api/audit", params={"text": "x!_"}).json()["items"] == []
            assert client.post("/api/jobs/samples/run", headers=csrf).json()["problem"] == ""
            history = client.get("/api/clusters/local/samples", params={"series": "in", "from_ms": now_ms() - 1000})
            assert history.status_code == 200
            assert password not in client.get("/api/audit").text


def test_the_folder_of_the_state_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    console = Console(console_settings("127.0.0.1:1", folder))
    with TestClient(app_of(console), base_url=BASE):
        assert folder.stat().st_mode & 0o077 == 0
