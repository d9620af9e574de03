"""What keeps strangers out of the console, and holds users to their roles."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.clock import ManualClock
from penstock.console.console import Console
from penstock.console.security.guard import COOKIE
from penstock.console.settings import SecuritySettings
from support.broker_process import BrokerProcess
from support.console_process import ConsoleProcess
from support.waiting import PATIENCE_S, until

from .conftest import BASE, CLUSTER, ROLES, RunningConsole, app_of, console_settings, csrf_of, sign_in_once
from .needed_roles import NEEDED

SOCKET_PATH = "/socket"
SOCKET = f"ws://127.0.0.1{SOCKET_PATH}"
NOWHERE = "127.0.0.1:1"
"""No cluster has to answer here."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def console(tmp_path: Any, clock: ManualClock) -> Console:
    return Console(
        console_settings(NOWHERE, tmp_path, security=SecuritySettings(max_body_bytes=10_000, login_attempts=3)), clock
    )


@pytest.fixture
def client(console: Console) -> Iterator[TestClient]:
    app = app_of(console)

    @app.websocket(SOCKET_PATH)
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(str(socket.state.caller.name))

    with TestClient(app, base_url=BASE) as client:
        yield client


def test_without_a_session_only_login_health_and_static_files_answer(client: TestClient) -> None:
    assert client.get("/healthz").status_code == 200
    assert client.get("/static/login.css").status_code == 200
    assert client.get("/api/account").status_code == 401
    assert client.get("/api/openapi.json").status_code == 401
    page = client.get("/topics?x=1", follow_redirects=False)
    assert (page.status_code, page.headers["location"]) == (303, "/login?next=%2Ftopics%3Fx%3D1")


def test_a_websocket_without_a_session_is_refused(client: TestClient) -> None:
    with (
        pytest.raises(WebSocketDisconnect) as refused,
        client.websocket_connect(SOCKET, headers={"origin": BASE}),
    ):
        pass
    assert refused.value.code == 4401


def test_a_websocket_of_another_origin_is_refused_although_it_has_the_cookie(
    console: Console, client: TestClient
) -> None:
    sign_in_once(console, client)
    for headers in ({"origin": "http://evil.example"}, {}):
        with pytest.raises(WebSocketDisconnect) as refused, client.websocket_connect(SOCKET, headers=headers):
            pass
        assert refused.value.code == 4403
    with client.websocket_connect(SOCKET, headers={"origin": BASE}) as socket:
        assert socket.receive_text() == "admin"


def test_a_host_that_the_console_is_not_known_by_is_refused(console: Console, client: TestClient) -> None:
    sign_in_once(console, client)
    assert client.get("/api/account", headers={"host": "evil.example"}).status_code == 400


def test_the_one_time_token_signs_in_once(console: Console, client: TestClient) -> None:
    token = console.new_one_time_token()
    shown = client.get("/login", params={"token": token})
    assert shown.status_code == 200 and COOKIE not in client.cookies
    assert client.post("/login", data={"token": token}, follow_redirects=False).status_code == 303
    client.cookies.clear()
    assert client.post("/login", data={"token": token}, follow_redirects=False).status_code == 401


def test_a_change_with_a_cookie_needs_the_csrf_token(console: Console, client: TestClient) -> None:
    sign_in_once(console, client)
    body = {"label": "x", "role": "viewer"}
    for headers in ({}, {"x-csrf-token": "wrong"}, {"x-csrf-token": ""}):
        assert client.post("/api/account/tokens", json=body, headers=headers).status_code == 403
    right = {"x-csrf-token": csrf_of(client)}
    evil = {**right, "origin": "http://evil.example"}
    assert client.post("/api/account/tokens", json=body, headers=evil).status_code == 403
    assert client.post("/api/account/tokens", json=body, headers=right).status_code == 201


def test_a_login_makes_a_new_session_whatever_cookie_came_with_it(console: Console, client: TestClient) -> None:
    client.cookies.set(COOKIE, "chosen-by-an-attacker")
    answer = client.post("/login", data={"token": console.new_one_time_token()}, follow_redirects=False)
    first = answer.cookies[COOKIE]
    assert first != "chosen-by-an-attacker"
    client.cookies.clear()
    client.cookies.set(COOKIE, first)
    second = client.post("/login", data={"token": console.new_one_time_token()}, follow_redirects=False).cookies[COOKIE]
    client.cookies.clear()
    client.cookies.set(COOKIE, first)
    assert client.get("/api/account").status_code == 401
    client.cookies.clear()
    client.cookies.set(COOKIE, second)
    assert client.get("/api/account").status_code == 200


def test_the_cookie_is_kept_from_scripts_and_is_not_in_the_database(console: Console, client: TestClient) -> None:
    answer = client.post("/login", data={"token": console.new_one_time_token()}, follow_redirects=False)
    told = answer.headers["set-cookie"]
    assert "HttpOnly" in told and "SameSite=lax" in told
    cookie = answer.cookies[COOKIE]
    for file in console.settings.data.iterdir():
        assert cookie.encode() not in file.read_bytes()


def test_a_session_ends_with_logout_idleness_and_age(console: Console, client: TestClient, clock: ManualClock) -> None:
    ended: list[str] = []
    console.sessions.on_end(ended.append)
    sign_in_once(console, client)
    cookie = client.cookies[COOKIE]
    out = client.delete("/api/account/sessions/current", headers={"x-csrf-token": csrf_of(client)})
    assert out.status_code == 204 and len(ended) == 1
    client.cookies.clear()
    client.cookies.set(COOKIE, cookie)
    assert client.get("/api/account").status_code == 401
    sign_in_once(console, client)
    clock.advance(console.settings.security.session_idle_ms)
    assert client.get("/api/account").status_code == 401
    sign_in_once(console, client)
    for _ in range(5):
        clock.advance(console.settings.security.session_max_ms // 6)
        assert client.get("/api/account").status_code == 200
    clock.advance(console.settings.security.session_max_ms // 6)
    assert client.get("/api/account").status_code == 401


def test_guessing_passwords_is_slowed_down_and_audited(
    console: Console, client: TestClient, clock: ManualClock
) -> None:
    sign_in_once(console, client)
    csrf = {"x-csrf-token": csrf_of(client)}
    password = "correct horse battery"
    client.post("/api/users", json={"name": "eve", "role": "viewer", "password": password}, headers=csrf)
    cookie = client.cookies[COOKIE]
    client.cookies.clear()

    def attempt(name: str, word: str) -> int:
        answer = client.post("/login", data={"name": name, "password": word}, follow_redirects=False)
        return int(answer.status_code)

    assert [attempt("eve", f"guess number {number}") for number in range(3)] == [401] * 3
    assert attempt("eve", password) == 429
    assert attempt("unknown", password) == 401
    clock.advance(console.settings.security.login_window_ms)
    client.cookies.clear()
    assert attempt("eve", password) == 303
    client.cookies.clear()
    client.cookies.set(COOKIE, cookie)
    entries = client.get("/api/audit", params={"operation": "session.sign_in", "user": "eve"}).json()["items"]
    assert sorted(entry["outcome"] for entry in entries) == ["done", "failed", "failed", "failed", "refused"]
    assert password not in json.dumps(entries)


def test_a_stolen_session_does_not_get_to_guess_the_password(console: Console, client: TestClient) -> None:
    sign_in_once(console, client)
    csrf = {"x-csrf-token": csrf_of(client)}

    def attempt(old: str | None, new: str) -> int:
        return int(client.put("/api/account/password", json={"old": old, "new": new}, headers=csrf).status_code)

    assert attempt(None, "correct horse battery") == 204
    assert [attempt(f"guess number {number}", "mine from now on") for number in range(3)] == [400] * 3
    assert attempt("correct horse battery", "mine from now on") == 429


def test_strangers_cannot_fill_the_audit_log_by_failing_to_sign_in(console: Console, client: TestClient) -> None:
    """Who is refused again and again has one line."""
    for _ in range(12):
        client.post("/login", data={"name": "eve", "password": "guess"})
    sign_in_once(console, client)
    entries = client.get("/api/audit", params={"operation": "session.sign_in", "user": "eve"}).json()["items"]
    assert sorted(entry["outcome"] for entry in entries) == ["failed"] * 3 + ["refused"]


def test_a_body_that_is_too_large_is_refused_whatever_its_length_says(console: Console, client: TestClient) -> None:
    sign_in_once(console, client)
    csrf = {"x-csrf-token": csrf_of(client)}
    assert client.post("/api/users", content=b"x" * 10_001, headers=csrf).status_code == 413

    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 1000

    assert client.post("/api/users", content=chunks(), headers=csrf).status_code == 413


def test_a_login_leads_to_no_other_host(console: Console, client: TestClient) -> None:
    for target in ("https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
        data = {"token": console.new_one_time_token(), "next": target}
        assert client.post("/login", data=data, follow_redirects=False).headers["location"] == "/"


def test_the_login_form_escapes_what_it_is_given(client: TestClient) -> None:
    page = client.get("/login", params={"next": '/"><script>alert(1)</script>', "token": '"><script>x</script>'}).text
    assert "<script>alert" not in page and "<script>x" not in page


def test_every_answer_carries_the_headers_that_protect_it(console: Console, client: TestClient) -> None:
    for answer in (client.get("/login"), client.get("/api/account"), client.get("/static/login.css")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "unsafe-eval" not in answer.headers["content-security-policy"]
    first, second = (client.get("/login").headers["content-security-policy"] for _ in range(2))
    assert first != second


def test_a_disabled_user_is_out_at_once_and_the_last_admin_stays(console: Console, client: TestClient) -> None:
    sign_in_once(console, client)
    csrf = {"x-csrf-token": csrf_of(client)}
    password = "correct horse battery"
    client.post("/api/users", json={"name": "bob", "role": "admin", "password": password}, headers=csrf)
    assert client.patch("/api/users/bob", json={"is_disabled": True}, headers=csrf).status_code == 200
    last = client.patch("/api/users/admin", json={"role": "viewer"}, headers=csrf)
    assert last.status_code == 409 and "last admin" in last.json()["detail"]
    assert client.delete("/api/users/admin", headers=csrf).status_code == 400


def test_a_token_has_no_more_rights_than_its_user(console: Console, client: TestClient) -> None:
    sign_in_once(console, client)
    csrf = {"x-csrf-token": csrf_of(client)}
    text = client.post("/api/account/tokens", json={"label": "t", "role": "viewer"}, headers=csrf).json()["text"]
    client.cookies.clear()
    bearer = {"authorization": f"Bearer {text}"}
    assert client.get("/api/account", headers=bearer).json()["role"] == "viewer"
    assert client.get("/api/users", headers=bearer).status_code == 403
    assert client.get("/api/account", headers={"authorization": f"Bearer {text}x"}).status_code == 401
    assert client.get("/api/account", headers={"authorization": "Bearer pst_"}).status_code == 401


def test_grants_give_a_role_on_a_prefix_only(running: RunningConsole) -> None:
    admin = running.as_role("admin")
    for name in ("team-a.orders", "team-b.orders"):
        admin.post(f"/clusters/{CLUSTER}/topics", {"name": name, "partitions": 1}, status=201)
    running.until_round(lambda snapshot: "team-b.orders" in snapshot.topics, "both topics are known")
    grants = [{"kind": "topic", "prefix": "team-a.", "role": "operator"}]
    admin.call("PATCH", "/users/none-user", json={"grants": grants})
    client = running.client
    made = client.post("/login", data={"name": "none-user", "password": "a long enough password"})
    assert made.status_code in (200, 404)
    csrf = {"x-csrf-token": csrf_of(client)}
    listed = client.get(f"/api/clusters/{CLUSTER}/topics").json()["items"]
    assert [row["name"] for row in listed] == ["team-a.orders"]
    overview = client.get(f"/api/clusters/{CLUSTER}").json()
    assert overview["summary"]["topics"] == 1 and overview["brokers"] == []
    home = f"/api/clusters/{CLUSTER}/topics"
    assert client.get(f"{home}/team-b.orders").status_code == 403
    body = {"value": {"text": "x"}}
    assert client.post(f"{home}/team-a.orders/messages", json=body, headers=csrf).status_code == 201
    assert client.post(f"{home}/team-b.orders/messages", json=body, headers=csrf).status_code == 403
    place = {"messages": [{"partition": 0, "offset": 0}], "to": "team-b.orders"}
    assert client.post(f"{home}/team-a.orders/messages/resend", json=place, headers=csrf).status_code == 403
    view = {"name": "team-a.view", "view_of": "team-b.orders", "tags": "x"}
    assert client.post(f"{home}/views", json=view, headers=csrf).status_code == 403
    cookie = client.cookies[COOKIE]
    admin.call("PATCH", "/users/none-user", json={"grants": []})
    client.cookies.set(COOKIE, cookie)
    assert client.get(f"{home}/team-a.orders").status_code == 403
    client.cookies.clear()


def test_refused_attempts_are_in_the_audit_log_which_no_call_changes(running: RunningConsole) -> None:
    refused = running.as_role("viewer").call("POST", f"/clusters/{CLUSTER}/topics", json={"name": "not-for-viewers"})
    assert refused.status_code == 403 and "role admin" in refused.json()["detail"]
    admin = running.as_role("admin")
    (entry,) = admin.get("/audit", resource="not-for-viewers")["items"]
    assert (entry["outcome"], entry["user"], entry["operation"]) == ("refused", "viewer-user", "topics.create")
    schema = running.client.app.openapi()  # type: ignore[attr-defined]
    assert {method for path, methods in schema["paths"].items() if "/audit" in path for method in methods} == {"get"}
    for text in ("' OR '1'='1", "%", "_", "!"):
        assert admin.get("/audit", resource=text)["items"] == []
    assert admin.get("/audit", text="%")["items"] == []
    export = admin.call("GET", "/audit/export", params={"resource": "not-for-viewers"})
    assert "topics.create" in export.text and export.text.count("\n") == 2


def test_the_audit_log_comes_in_pages(running: RunningConsole) -> None:
    admin = running.as_role("admin")
    first = admin.get("/audit", limit=2)
    second = admin.get("/audit", limit=2, after=first["next"])
    ids = [entry["id"] for entry in [*first["items"], *second["items"]]]
    assert len(set(ids)) == 4 and ids == sorted(ids, reverse=True)


Call = tuple[str, str]


def _allowed(role: str, needed: str) -> bool:
    return ROLES.index(role) >= ROLES.index(needed)


def test_each_role_against_each_call(running: RunningConsole, needed_roles: Callable[[], dict[Call, str]]) -> None:
    """The role that a call needs is written down here once more, so that a change of a declaration is noticed."""
    for (method, path), needed in needed_roles().items():
        filled = path.replace("/api", "", 1).replace("{cluster}", CLUSTER).replace("{partition}", "0")
        for name in (
            "topic",
            "group",
            "id",
            "name",
            "offset",
            "job",
            "transaction",
            "database",
            "letter",
            "timer",
            "schema",
        ):
            filled = filled.replace(f"{{{name}}}", "0" if name == "offset" else "absent")
        filled = filled.replace("{broker}", "99")
        for role in ROLES:
            params = _needed_params(running, method, path)
            body = _body_of(running, method, path)
            answer = running.as_role(role).call(method.upper(), filled, params=params, **body)
            is_refused = answer.status_code == 403 and answer.json()["code"] == "REFUSED"
            assert is_refused != _allowed(role, needed), f"{role} {method} {path}: {answer.status_code} {answer.text}"
            assert answer.status_code < 500 or answer.status_code in (502, 503, 504), answer.text


def test_no_call_answers_without_a_session(client: TestClient) -> None:
    """Streams and downloads included."""
    for method, path in NEEDED:
        for headers in ({}, {"authorization": "Bearer pst_guessed"}, {"cookie": f"{COOKIE}=guessed"}):
            answer = client.request(method.upper(), _absent(path), headers=headers)
            assert answer.status_code == 401, f"{method} {path}: {answer.status_code} {answer.text}"


def test_no_change_is_made_with_a_cookie_alone(console: Console, client: TestClient) -> None:
    sign_in_once(console, client)
    for method, path in NEEDED:
        if method == "get":
            continue
        for headers in ({}, {"x-csrf-token": "guessed"}, {"x-csrf-token": csrf_of(client), "origin": "http://evil"}):
            answer = client.request(method.upper(), _absent(path), headers=headers)
            assert answer.status_code == 403, f"{method} {path}: {answer.status_code} {answer.text}"
    assert client.get("/api/account").status_code == 200


def test_a_live_view_ends_with_its_session(broker: BrokerProcess, tmp_path: Path) -> None:
    """Through a web server: the client of the tests reads no stream before its end."""
    process = ConsoleProcess(tmp_path, CLUSTER, broker.kafka).start()
    try:
        with httpx.Client(base_url=process.address, timeout=PATIENCE_S) as http:
            assert http.post("/login", data={"token": process.token}).status_code == 303
            csrf = {"x-csrf-token": http.get("/api/account").json()["csrf"]}
            home = f"/api/clusters/{CLUSTER}/topics"
            assert http.post(home, json={"name": "followed", "partitions": 1}, headers=csrf).status_code == 201
            with http.stream("GET", f"{home}/followed/tail") as stream:
                lines = stream.iter_lines()
                until(lambda: next(lines).startswith("data:"), "the stream goes on")
                with httpx.Client(base_url=process.address, cookies=http.cookies, timeout=PATIENCE_S) as other:
                    assert other.delete("/api/account/sessions/current", headers=csrf).status_code == 204
                assert len(list(lines)) < 100, "it ends"
    finally:
        process.kill()


@dataclass(frozen=True)
class Watched:
    """A console of its own with a topic, its admin, and viewers who come with tokens."""

    address: str
    admin: httpx.Client

    def new_token(self, name: str) -> dict[str, Any]:
        """The token, with its text, of a new viewer."""
        user = {"name": name, "role": "viewer", "password": "a long enough password"}
        assert self.admin.post("/api/users", json=user).status_code == 201
        with httpx.Client(base_url=self.address, timeout=PATIENCE_S) as http:
            assert http.post("/login", data=user).status_code == 303
            csrf = {"x-csrf-token": http.get("/api/account").json()["csrf"]}
            made = http.post("/api/account/tokens", json={"label": name, "role": "viewer"}, headers=csrf)
            found: dict[str, Any] = made.json()
            return found


@pytest.fixture
def watched(broker: BrokerProcess, tmp_path: Path) -> Iterator[Watched]:
    process = ConsoleProcess(tmp_path, CLUSTER, broker.kafka).start()
    try:
        with httpx.Client(base_url=process.address, timeout=PATIENCE_S) as admin:
            assert admin.post("/login", data={"token": process.token}).status_code == 303
            admin.headers["x-csrf-token"] = admin.get("/api/account").json()["csrf"]
            made = admin.post(f"/api/clusters/{CLUSTER}/topics", json={"name": "watched", "partitions": 1})
            assert made.status_code in (201, 409), made.text
            yield Watched(process.address, admin)
    finally:
        process.kill()


@contextmanager
def following(watched: Watched, token: str) -> Iterator[Iterator[str]]:
    """The lines of a live view, which has begun."""
    headers = {"authorization": f"Bearer {token}"}
    with (
        httpx.Client(base_url=watched.address, timeout=PATIENCE_S, headers=headers) as http,
        http.stream("GET", f"/api/clusters/{CLUSTER}/topics/watched/tail") as stream,
    ):
        lines = stream.iter_lines()
        until(lambda: next(lines).startswith("data:"), "the stream goes on")
        yield lines


def ends(lines: Iterator[str]) -> bool:
    """Whether a live view ends within a minute or so: it has two lines a second."""
    return len(list(islice(lines, 100))) < 100


def test_a_live_view_follows_masking_rules(watched: Watched) -> None:
    admin = watched.admin
    with following(watched, watched.new_token("masked")["text"]) as lines:
        rule = {"part": "json", "topic_prefix": "watched", "path": "$.card"}
        assert admin.post("/api/masking-rules", json=rule).status_code == 201
        sent = {"value": {"text": '{"card": "4711", "number": 1}'}}
        assert admin.post(f"/api/clusters/{CLUSTER}/topics/watched/messages", json=sent).status_code == 201
        assert "4711" not in next(line for line in lines if "number" in line)
        rule = {"part": "messages", "topic_prefix": "watched"}
        assert admin.post("/api/masking-rules", json=rule).status_code == 201
        assert ends(lines)


def test_a_live_view_ends_when_its_viewer_loses_the_right_to_it(watched: Watched) -> None:
    admin = watched.admin
    token = watched.new_token("revoked")
    with following(watched, token["text"]) as lines:
        assert admin.delete(f"/api/tokens/{token['token']['id']}").status_code == 204
        assert ends(lines)
    with following(watched, watched.new_token("demoted")["text"]) as lines:
        assert admin.patch("/api/users/demoted", json={"role": "none"}).status_code == 200
        assert ends(lines)


@pytest.mark.parametrize("text", ["{{7*7}}", "${7*7}", "#{7*7}", "<%= 7*7 %>", "{0.__class__}", "%(secret)s", "\x00"])
def test_what_is_searched_for_is_a_text_and_no_template(running: RunningConsole, text: str) -> None:
    admin = running.as_role("admin")
    name = "templates"
    home = f"/clusters/{CLUSTER}/topics"
    if admin.call("GET", f"{home}/{name}").status_code == 404:
        admin.post(home, {"name": name, "partitions": 1}, status=201)
        for body in ("49", "nothing", "secret"):
            admin.post(f"{home}/{name}/messages", {"value": {"text": body}}, status=201)
    sent = admin.post(f"{home}/{name}/messages", {"value": {"text": f"a {text} b"}}, status=201)
    id = admin.post(f"{home}/{name}/searches", {"text": text}, status=202)["id"]
    until(lambda: admin.get(f"/searches/{id}")["state"] != "running", "the search has ended")
    assert [row["offset"] for row in admin.get(f"/searches/{id}")["rows"]] == [sent["offset"]]
    for path in ("topics", "groups"):
        assert admin.get(f"/clusters/{CLUSTER}/{path}", text=text)["items"] == []


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "../up", "a b", ""])
def test_a_topic_with_markup_in_its_name_cannot_be_made(running: RunningConsole, name: str) -> None:
    answer = running.as_role("admin").call("POST", f"/clusters/{CLUSTER}/topics", json={"name": name})
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def _absent(path: str) -> str:
    """A path with names of nothing in it."""
    filled = path.replace("{cluster}", CLUSTER)
    for name in ("partition", "offset", "broker"):
        filled = filled.replace(f"{{{name}}}", "0")
    return re.sub(r"\{\w+\}", "absent", filled)


def _body_of(running: RunningConsole, method: str, path: str) -> dict[str, Any]:
    """The smallest body that passes validation, from the schema."""
    schema = running.client.app.openapi()  # type: ignore[attr-defined]
    declared = schema["paths"][path][method].get("requestBody")
    if declared is None:
        return {}
    return {"json": _smallest(declared["content"]["application/json"]["schema"], schema)}


def _needed_params(running: RunningConsole, method: str, path: str) -> dict[str, Any]:
    schema = running.client.app.openapi()  # type: ignore[attr-defined]
    declared = schema["paths"][path][method].get("parameters", [])
    return {
        each["name"]: _smallest(each["schema"], schema)
        for each in declared
        if each["in"] == "query" and each["required"]
    }


def _smallest(shape: dict[str, Any], schema: dict[str, Any]) -> Any:
    if "$ref" in shape:
        return _smallest(schema["components"]["schemas"][shape["$ref"].rsplit("/", 1)[1]], schema)
    if "anyOf" in shape:
        return _smallest(shape["anyOf"][0], schema)
    if "enum" in shape:
        return shape["enum"][0]
    match shape.get("type"):
        case "object":
            needed = shape.get("required", [])
            made = {name: _smallest(shape["properties"][name], schema) for name in needed}
            if shape.get("minProperties") and not made:
                made = {"0": _smallest(shape["additionalProperties"], schema)}
            return made
        case "array":
            return [_smallest(shape["items"], schema)] * shape.get("minItems", 0)
        case "integer" | "number":
            return max(0, int(shape.get("minimum", 0)))
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return "absent".ljust(shape.get("minLength", 1), "x")


@pytest.fixture
def needed_roles(running: RunningConsole) -> Callable[[], dict[Call, str]]:
    def check() -> dict[Call, str]:
        schema = running.client.app.openapi()  # type: ignore[attr-defined]
        declared = {(method, path) for path, methods in schema["paths"].items() for method in methods}
        assert declared == set(NEEDED), f"{declared ^ set(NEEDED)}"
        # The tail would go on, and a sign-out would end what later calls need.
        left_out = {("delete", "/api/account/sessions/current")}
        return {call: role for call, role in NEEDED.items() if call not in left_out}

    return check
