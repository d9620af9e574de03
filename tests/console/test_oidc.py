"""Signing in through a provider: a real one, and one that lies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import jwt
import pytest
from starlette.testclient import TestClient

from penstock.clock import ManualClock, SystemClock
from penstock.console.console import Console
from penstock.console.security.guard import COOKIE
from penstock.console.security.roles import Role
from penstock.console.settings import OidcSettings, SecuritySettings
from support.lying_provider import KEY, OTHER_KEY, Liar, signed_with_public_key
from support.oidc_provider import CLIENT_ID, CLIENT_SECRET, OidcProvider, ProviderBrowser

from .conftest import BASE, app_of, console_settings, csrf_of, sign_in_once

NOWHERE = "127.0.0.1:1"
"""No cluster has to answer here."""
CALLBACK = f"{BASE}/login/oidc/callback"
ATTEMPT = f"{COOKIE}_attempt"
ROLES = {"queue-admins": Role.ADMIN, "on-call": Role.OPERATOR, "staff": Role.VIEWER}


@pytest.fixture(scope="session")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OidcProvider]:
    running = OidcProvider(tmp_path_factory.mktemp("provider"), [CALLBACK], [f"{BASE}/login"])
    yield running
    running.close()


@pytest.fixture
def browser(provider: OidcProvider) -> Iterator[ProviderBrowser]:
    opened = ProviderBrowser(provider)
    yield opened
    opened.close()


def settings_for(issuer: str, **more: Any) -> OidcSettings:
    known = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "roles": ROLES, "label": "Example Login"}
    return OidcSettings(issuer=issuer, **{**known, **more})


Opened = tuple[Console, TestClient]
Open = Callable[..., Opened]


@pytest.fixture
def open_console(tmp_path: Path) -> Iterator[Open]:
    """A console with a provider, whose requests are those of one browser."""
    opened: list[TestClient] = []

    def create(issuer: str, clock: Any = None, security: SecuritySettings | None = None, **more: Any) -> Opened:
        settings = console_settings(
            NOWHERE, tmp_path, oidc=settings_for(issuer, **more), security=security or SecuritySettings()
        )
        console = Console(settings, clock or SystemClock())
        client = TestClient(app_of(console), base_url=BASE, follow_redirects=False)
        opened.append(client.__enter__())
        return console, client

    yield create
    for client in opened:
        client.__exit__(None, None, None)


def begun(client: TestClient, target: str = "") -> str:
    """Where the console sends a browser."""
    answer = client.get("/login/oidc", params={"next": target} if target else {})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def came_back(client: TestClient, address: str) -> Any:
    assert address.startswith(CALLBACK), address
    return client.get(address.removeprefix(BASE))


def changed(address: str, **values: str) -> str:
    parts = urlsplit(address)
    return parts._replace(query=urlencode({**dict(parse_qsl(parts.query)), **values})).geturl()


def signs_in(client: TestClient, browser: ProviderBrowser, name: str, target: str = "") -> Any:
    return came_back(client, browser.sign_in(begun(client, target), name))


def is_signed_in(client: TestClient) -> bool:
    return bool(client.get("/api/account").status_code == 200)


def why(answer: Any) -> str:
    """What the page says, which has to be a refusal."""
    assert answer.status_code >= 400 and COOKIE not in answer.cookies, answer.text
    text: str = answer.text.partition('role="alert">')[2].partition("</p>")[0]
    return text


class TestRealProvider:
    def test_a_group_gives_a_role_and_everything_is_in_the_audit_log(
        self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open
    ) -> None:
        _, client = open_console(provider.issuer)
        assert "Sign in with Example Login" in client.get("/login").text
        name = provider.add_user(groups=["staff", "queue-admins", "others"])
        answer = signs_in(client, browser, name, "/c/local/topics?text=a")
        assert (answer.status_code, answer.headers["location"]) == (303, "/c/local/topics?text=a")
        account = client.get("/api/account").json()
        assert (account["name"], account["role"], account["issuer"]) == (name, "admin", provider.issuer)
        assert not account["has_password"]
        (entry,) = client.get("/api/audit", params={"operation": "session.sign_in", "user": name}).json()["items"]
        assert (entry["outcome"], entry["via"]) == ("done", "oidc")
        users = {each["name"]: each for each in client.get("/api/users").json()}
        assert users[name]["issuer"] == provider.issuer and users["admin"]["issuer"] == ""

    def test_claims_that_are_not_in_the_id_token_are_asked_for(
        self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open
    ) -> None:
        """Without a claim for roles in the ID token, userinfo has none either: `*` lets everyone in."""
        _, client = open_console(provider.issuer, roles={"*": Role.VIEWER}, role_claim="realm.none")
        answer = signs_in(client, browser, provider.add_user())
        assert answer.status_code == 303 and client.get("/api/account").json()["role"] == "viewer"

    def test_who_has_no_role_stays_out_and_who_loses_it_is_out_at_once(
        self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open
    ) -> None:
        _, client = open_console(provider.issuer)
        name = provider.add_user(groups=["on-call"])
        signs_in(client, browser, name)
        csrf = {"x-csrf-token": csrf_of(client)}
        token = client.post("/api/account/tokens", json={"label": "x", "role": "operator"}, headers=csrf).json()
        held = client.cookies[COOKIE]
        provider.set_claims(name, groups=["cooks"])
        assert "no role at this console" in why(came_back(client, browser.sign_in(begun(client), name)))
        client.cookies.clear()
        client.cookies.set(COOKIE, held)
        assert not is_signed_in(client), "the session from before has ended"
        client.cookies.clear()
        bearer = {"authorization": f"Bearer {token['text']}"}
        assert client.get("/api/account", headers=bearer).status_code == 401, "so has the token"
        provider.set_claims(name, groups="staff")
        came_back(client, browser.sign_in(begun(client), name))
        assert client.get("/api/account").json()["role"] == "viewer"

    def test_a_stranger_is_not_let_in_and_not_remembered(
        self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open
    ) -> None:
        console, client = open_console(provider.issuer)
        name = provider.add_user(groups=[])
        assert "no role" in why(signs_in(client, browser, name))
        sign_in_once(console, client)
        assert [each["name"] for each in client.get("/api/users").json()] == ["admin"]
        (entry,) = client.get("/api/audit", params={"operation": "session.sign_in", "user": name}).json()["items"]
        assert entry["outcome"] == "failed" and "no role" in entry["problem"]

    @pytest.mark.parametrize("taken", ["admin", "mei"])
    def test_the_name_of_a_local_user_is_not_taken_over(
        self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open, taken: str
    ) -> None:
        console, client = open_console(provider.issuer)
        sign_in_once(console, client)
        body = {"name": "mei", "role": "admin", "password": "a long pass phrase"}
        client.post("/api/users", json=body, headers={"x-csrf-token": csrf_of(client)})
        client.cookies.clear()
        name = provider.add_user(groups=["staff"])
        provider.set_claims(name, preferred_username=taken, groups=["staff"])
        assert f"there is a user {taken}" in why(signs_in(client, browser, name))

    def test_a_name_stays_with_the_person_who_had_it_first(
        self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open
    ) -> None:
        _, client = open_console(provider.issuer)
        first, second = provider.add_user(groups=["queue-admins"]), provider.add_user(groups=["staff"])
        signs_in(client, browser, first)
        client.cookies.clear()
        provider.set_claims(second, preferred_username=first, groups=["staff"])
        other = ProviderBrowser(provider)
        assert "there is a user" in why(came_back(client, other.sign_in(begun(client), second)))
        other.close()

    def test_a_user_of_the_provider_gets_no_password_and_can_be_disabled(
        self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open
    ) -> None:
        console, client = open_console(provider.issuer)
        name = provider.add_user(groups=["queue-admins"])
        signs_in(client, browser, name)
        csrf = {"x-csrf-token": csrf_of(client)}
        body = {"old": None, "new": "a password of my own"}
        refused = client.put("/api/account/password", json=body, headers=csrf)
        assert refused.status_code == 400 and "has no password here" in refused.json()["detail"]
        sign_in_once(console, client)
        csrf = {"x-csrf-token": csrf_of(client)}
        assert client.patch(f"/api/users/{name}", json={"is_disabled": True}, headers=csrf).status_code == 200
        client.cookies.clear()
        assert "disabled" in why(came_back(client, browser.sign_in(begun(client), name)))

    def test_a_code_counts_once(self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open) -> None:
        _, client = open_console(provider.issuer)
        address = browser.sign_in(begun(client), provider.add_user(groups=["staff"]))
        attempt = client.cookies[ATTEMPT]
        assert came_back(client, address).status_code == 303
        assert ATTEMPT not in client.cookies, "the answer takes the attempt away"
        client.cookies.clear()
        assert "was not begun in this browser" in why(came_back(client, address))
        client.cookies.set(ATTEMPT, attempt)
        assert "does not accept the code" in why(came_back(client, address))

    def test_a_stolen_code_is_worth_nothing_in_another_login(
        self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open
    ) -> None:
        """PKCE: the thief's own attempt has another verifier."""
        _, client = open_console(provider.issuer)
        stolen = browser.sign_in(begun(client), provider.add_user(groups=["queue-admins"]))
        client.cookies.clear()
        (state,) = parse_qs(urlsplit(begun(client)).query)["state"]
        assert "does not accept the code" in why(came_back(client, changed(stolen, state=state)))

    def test_nobody_is_signed_in_by_the_login_of_somebody_else(
        self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open
    ) -> None:
        """An attacker has a victim's browser open the end of the attacker's own login."""
        _, client = open_console(provider.issuer)
        prepared = browser.sign_in(begun(client), provider.add_user(groups=["staff"]))
        client.cookies.clear()
        assert "was not begun in this browser" in why(came_back(client, prepared))
        begun(client)
        assert "was not begun in this browser" in why(came_back(client, prepared))
        for state in ("", "x", "é", "x" * 200):
            begun(client)
            assert "was not begun in this browser" in why(came_back(client, changed(prepared, state=state)))
        assert not is_signed_in(client)

    def test_a_login_leads_to_no_other_host_and_makes_a_new_session(
        self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open
    ) -> None:
        _, client = open_console(provider.issuer)
        name = provider.add_user(groups=["staff"])
        for target in ("https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
            client.cookies.clear()
            client.cookies.set(COOKIE, "chosen-by-an-attacker")
            answer = came_back(client, browser.sign_in(begun(client, target), name))
            assert answer.headers["location"] == "/"
            assert answer.cookies[COOKIE] != "chosen-by-an-attacker"
        first = answer.cookies[COOKIE]
        client.cookies.clear()
        client.cookies.set(COOKIE, first)
        came_back(client, browser.sign_in(begun(client), name))
        client.cookies.clear()
        client.cookies.set(COOKIE, first)
        assert not is_signed_in(client), "the session that the browser came with has ended"

    def test_passwords_can_be_switched_off_but_not_the_address_in_the_terminal(
        self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open
    ) -> None:
        console, client = open_console(provider.issuer, takes_passwords=False)
        sign_in_once(console, client)
        body = {"name": "mei", "role": "admin", "password": "a long pass phrase"}
        client.post("/api/users", json=body, headers={"x-csrf-token": csrf_of(client)})
        client.cookies.clear()
        page = client.get("/login").text
        assert "password" not in page and "Example Login" in page
        answer = client.post("/login", data={"name": "mei", "password": "a long pass phrase"})
        assert answer.status_code == 403 and "switched off" in why(answer)
        assert signs_in(client, browser, provider.add_user(groups=["staff"])).status_code == 303

    @pytest.mark.parametrize("ends_provider_session", [True, False])
    def test_signing_out_ends_the_session_at_the_provider_if_that_is_wished(
        self, provider: OidcProvider, browser: ProviderBrowser, open_console: Open, ends_provider_session: bool
    ) -> None:
        _, client = open_console(provider.issuer, ends_provider_session=ends_provider_session)
        signs_in(client, browser, provider.add_user(groups=["staff"]))
        csrf = {"x-csrf-token": csrf_of(client)}
        assert client.delete("/api/account/sessions/current", headers=csrf).status_code == 204
        assert not is_signed_in(client)
        where = client.get("/login/oidc/logout").headers["location"]
        if not ends_provider_session:
            assert where == f"{BASE}/login"
            return
        assert where.startswith(f"{provider.issuer}/logout/?")
        back = browser.confirm(where)
        assert back.is_redirect and back.headers["location"].startswith(f"{BASE}/login")
        assert browser.get(begun(client)).headers["location"].startswith("/accounts/login/")

    def test_secrets_are_nowhere(
        self,
        provider: OidcProvider,
        browser: ProviderBrowser,
        open_console: Open,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("DEBUG", "penstock")
        console, client = open_console(provider.issuer)
        address = browser.sign_in(begun(client), provider.add_user(groups=["queue-admins"]))
        (code,) = parse_qs(urlsplit(address).query)["code"]
        answer = came_back(client, address)
        told = caplog.text + client.get("/api/audit/export").text + answer.text + repr(console.settings)
        assert CLIENT_SECRET not in told and code not in told
        for file in console.settings.data.iterdir():
            content = file.read_bytes()
            assert CLIENT_SECRET.encode() not in content and code.encode() not in content


@pytest.fixture
def liar() -> Iterator[Liar]:
    running = Liar()
    yield running
    running.close()


def ends(liar: Liar, client: TestClient, claims: dict[str, Any], **query: str) -> Any:
    """A login that the liar ends with these claims in place of right ones."""
    asked = {name: values[0] for name, values in parse_qs(urlsplit(begun(client)).query).items()}
    assert asked["code_challenge_method"] == "S256" and asked["response_type"] == "code"
    right = {
        "iss": liar.issuer,
        "aud": asked["client_id"],
        "sub": "s-1",
        "exp": int(time.time()) + 300,
        "nonce": asked["nonce"],
        "preferred_username": "eve",
        "groups": ["queue-admins"],
    }
    liar.claims = {name: value for name, value in {**right, **claims}.items() if value is not None}
    address = f"/login/oidc/callback?{urlencode({'code': 'c', 'state': asked['state'], **query})}"
    return client.get(address)


class TestLiar:
    def test_a_right_token_counts(self, liar: Liar, open_console: Open) -> None:
        """What the others change one thing of."""
        _, client = open_console(liar.issuer)
        assert ends(liar, client, {}).status_code == 303
        assert client.get("/api/account").json()["name"] == "eve"

    @pytest.mark.parametrize(
        ("claims", "reason"),
        [
            ({"nonce": "of another login"}, "it is of another login"),
            ({"nonce": None}, "it is of another login"),
            ({"nonce": ["x"]}, "it is of another login"),
            ({"aud": "another-client"}, "it is for another audience"),
            ({"aud": None}, "it is for another audience"),
            ({"aud": [CLIENT_ID, "another"]}, "it was made for another client"),
            ({"azp": "another"}, "it was made for another client"),
            ({"iss": "https://evil.example"}, "it is from another issuer"),
            ({"iss": None}, "it is from another issuer"),
            ({"exp": int(time.time()) - 60}, "it has expired"),
            ({"exp": None}, "it has no expiry"),
            ({"nbf": int(time.time()) + 86_400}, "it is not valid yet"),
            ({"sub": None}, "does not say who it is"),
            ({"sub": 7}, "does not say who it is"),
            ({"preferred_username": "<script>alert(1)</script>"}, "a user&#x27;s name is"),
            ({"preferred_username": "../../etc"}, "a user&#x27;s name is"),
            ({"preferred_username": ["eve"]}, "tells no preferred_username"),
            ({"groups": {"queue-admins": True}}, "no role at this console"),
            ({"groups": [["queue-admins"]]}, "no role at this console"),
            ({"groups": "queue-admins on-call"}, "no role at this console"),
        ],
    )
    def test_a_token_that_is_not_for_this_login_does_not_count(
        self, liar: Liar, open_console: Open, claims: dict[str, Any], reason: str
    ) -> None:
        _, client = open_console(liar.issuer)
        assert reason in why(ends(liar, client, claims))
        assert not is_signed_in(client)

    @pytest.mark.parametrize(
        ("make", "reason"),
        [
            (lambda claims: jwt.encode(claims, "", "none"), "its algorithm is not one with a private key"),
            (lambda claims: jwt.encode(claims, CLIENT_SECRET, "HS256"), "its algorithm is not one with a private key"),
            (signed_with_public_key, "its algorithm is not one with a private key"),
            (lambda claims: jwt.encode(claims, OTHER_KEY, "RS256", {"kid": "one"}), "no known key has signed it"),
            (lambda claims: jwt.encode(claims, OTHER_KEY, "RS256", {"kid": "two"}), "no known key has signed it"),
            (lambda claims: jwt.encode(claims, KEY, "RS256").rpartition(".")[0] + ".", "no known key has signed it"),
            (lambda claims: jwt.PyJWS().encode(b"[" * 20_000, KEY, "RS256", {"kid": "one"}), "it cannot be decoded"),
            (lambda claims: "W1tb" * 8_000 + ".e30.x", "it is not a JSON Web Token"),
            (lambda claims: "not a token", "it is not a JSON Web Token"),
            (lambda claims: None, "gave no ID token"),
            (lambda claims: "x" * 100_000, "gave no ID token"),
        ],
    )
    def test_a_token_that_anyone_could_have_made_does_not_count(
        self, liar: Liar, open_console: Open, make: Callable[[dict[str, Any]], str], reason: str
    ) -> None:
        _, client = open_console(liar.issuer)
        liar.make = make
        assert reason in why(ends(liar, client, {}))
        assert not is_signed_in(client)

    @pytest.mark.parametrize(
        ("described", "reason"),
        [
            ({"issuer": "https://evil.example"}, "describes another issuer"),
            ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint is not https"),
            ({"authorization_endpoint": "http://evil.example/"}, "authorization_endpoint is not https"),
            ({"token_endpoint": "http://10.0.0.1/token"}, "token_endpoint is not https"),
            ({"jwks_uri": "file:///etc/passwd"}, "jwks_uri is not https"),
            ({"jwks_uri": None}, "jwks_uri is not https"),
            ({"end_session_endpoint": "//evil.example"}, "end_session_endpoint is not https"),
        ],
    )
    def test_a_description_that_leads_elsewhere_is_not_followed(
        self, liar: Liar, open_console: Open, described: dict[str, Any], reason: str
    ) -> None:
        _, client = open_console(liar.issuer)
        liar.description = described
        answer = client.get("/login/oidc")
        assert answer.status_code == 502 and reason in why(answer)

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            ((302, {"location": "http://169.254.169.254/"}, b""), "status 302"),
            ((200, {}, b"<html>"), "is no JSON object"),
            ((200, {}, b"[" * 100_000), "is no JSON object"),
            ((200, {}, b"x" * (2 << 20)), "too large"),
            ((500, {}, b"oops"), "status 500"),
        ],
    )
    @pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/token", "/keys"])
    def test_an_answer_that_makes_no_sense_signs_nobody_in(
        self, liar: Liar, open_console: Open, path: str, answer: Any, reason: str
    ) -> None:
        _, client = open_console(liar.issuer)
        liar.answers[path] = answer
        done = client.get("/login/oidc") if path.startswith("/.well") else ends(liar, client, {})
        assert done.status_code == 502 and reason in why(done)

    def test_a_provider_that_is_down_leaves_the_password(self, liar: Liar, open_console: Open) -> None:
        console, client = open_console("http://127.0.0.1:1")
        answer = client.get("/login/oidc")
        assert answer.status_code == 502 and "does not answer" in why(answer) and 'name="password"' in answer.text
        sign_in_once(console, client)

    def test_a_provider_that_is_down_is_not_asked_by_everyone_who_knocks(self, liar: Liar, open_console: Open) -> None:
        clock = ManualClock(int(time.time() * 1000))
        _, client = open_console(liar.issuer, clock)
        liar.answers["/.well-known/openid-configuration"] = (500, {}, b"")
        assert [client.get("/login/oidc").status_code for _ in range(3)] == [502] * 3
        assert len(liar.asked) == 1
        liar.answers.clear()
        clock.advance(2_000)
        assert ends(liar, client, {}).status_code == 303

    def test_words_of_the_provider_are_not_shown(self, liar: Liar, open_console: Open) -> None:
        _, client = open_console(liar.issuer)
        words = "<script>alert(1)</script>"
        told = ends(liar, client, {}, error=words, error_description=words)
        assert "did not let you in" in why(told) and "<script>alert" not in told.text
        liar.answers["/token"] = (400, {}, json.dumps({"error": words, "error_description": words}).encode())
        refused = ends(liar, client, {})
        assert "refuses the console (no reason)" in why(refused) and "alert(1)" not in refused.text

    def test_an_answer_of_another_provider_does_not_count(self, liar: Liar, open_console: Open) -> None:
        _, client = open_console(liar.issuer)
        assert "of another provider" in why(ends(liar, client, {}, iss="https://evil.example"))
        assert ends(liar, client, {}, iss=liar.issuer).status_code == 303

    def test_an_answer_that_should_name_its_provider_has_to(self, liar: Liar, open_console: Open) -> None:
        _, client = open_console(liar.issuer)
        liar.description = {"authorization_response_iss_parameter_supported": True}
        assert "of another provider" in why(ends(liar, client, {}))

    def test_userinfo_about_somebody_else_does_not_count(self, liar: Liar, open_console: Open) -> None:
        _, client = open_console(liar.issuer)
        liar.userinfo = {"sub": "s-2", "groups": ["queue-admins"]}
        assert "about somebody else" in why(ends(liar, client, {"groups": None}))
        liar.userinfo = {"sub": "s-1", "groups": ["staff"], "iss": "https://evil.example"}
        assert ends(liar, client, {"groups": None}).status_code == 303
        assert client.get("/api/account").json()["role"] == "viewer"

    def test_a_mail_address_that_is_not_verified_is_no_name(self, liar: Liar, open_console: Open) -> None:
        _, client = open_console(liar.issuer, name_claim="email")
        claims = {"email": "boss@example.com", "email_verified": False}
        assert "has not verified" in why(ends(liar, client, claims))

    def test_an_attempt_has_an_end(self, liar: Liar, open_console: Open) -> None:
        clock = ManualClock(int(time.time() * 1000))
        _, client = open_console(liar.issuer, clock, attempt_ms=1_000)
        address = parse_qs(urlsplit(begun(client)).query)
        clock.advance(1_000)
        answer = client.get("/login/oidc/callback", params={"code": "c", "state": address["state"][0]})
        assert "took too long" in why(answer) and "/token" not in liar.asked

    def test_an_attempt_that_was_changed_does_not_count(self, liar: Liar, open_console: Open) -> None:
        _, client = open_console(liar.issuer)
        state = parse_qs(urlsplit(begun(client)).query)["state"][0]
        content, _, signature = client.cookies[ATTEMPT].partition(".")
        for cookie in (content, f"{content}.", f"{content}.{'0' * 64}", f"x{content}.{signature}", ".", "é"):
            client.cookies.clear()
            headers = {"cookie": f"{ATTEMPT}={cookie}".encode()}
            answer = client.get("/login/oidc/callback", params={"code": "c", "state": state}, headers=headers)
            assert "was not begun in this browser" in why(answer)
        assert "/token" not in liar.asked

    def test_guessing_is_slowed_down_by_address_and_keeps_no_user_out(self, liar: Liar, open_console: Open) -> None:
        clock = ManualClock(int(time.time() * 1000))
        _, client = open_console(liar.issuer, clock, SecuritySettings(login_attempts=1, login_window_ms=60_000))
        answers = [client.get("/login/oidc/callback", params={"state": str(number)}) for number in range(6)]
        assert [each.status_code for each in answers] == [403] * 5 + [429]
        assert client.get("/login/oidc").status_code == 429
        clock.advance(60_000)
        assert ends(liar, client, {}).status_code == 303

    def test_a_console_without_a_provider_says_so(self, tmp_path: Path) -> None:
        console = Console(console_settings(NOWHERE, tmp_path))
        with TestClient(app_of(console), base_url=BASE, follow_redirects=False) as client:
            assert client.get("/login/oidc").status_code == 404
            assert client.get("/login/oidc/callback").status_code == 404
            assert client.get("/login/oidc/logout").headers["location"] == f"{BASE}/login"
            assert "login/oidc" not in client.get("/login").text
