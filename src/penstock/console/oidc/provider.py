"""The provider as the console talks to it: its description, its keys, and the exchange of a code for claims.

Follows OpenID Connect Core 1.0 and Discovery 1.0, RFC 7636 (PKCE) and RFC 9207 (`iss` in the answer).

Rules:
- The description has to be about the issuer that was set, and every address in it is https, or http on this machine.
- No answer sends the console on to another address, and none is larger than `_MAX_BYTES`.
- An ID token counts as tokens of clients do (`security/oauth.py`), and must be for this client and for this login.
- No text of the provider gets into messages: an attacker could have written it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx

from penstock.clock import Clock
from penstock.config.security import parse_key_set_url
from penstock.console.oidc.errors import IdentityError, ProviderError
from penstock.console.oidc.identity import claim
from penstock.console.oidc.login_attempt import LoginAttempt
from penstock.console.settings import OidcSettings
from penstock.security.oauth import KeySet, TokenError, TokenRules, read_claims

_DISCOVERY = "/.well-known/openid-configuration"
_MAX_BYTES = 1 << 20
_MAX_TOKEN = 64 << 10
_DESCRIPTION_MS = 3_600_000
_KEYS_MS = 3_600_000
_LEAST_MS_BETWEEN_KEYS = 5_000
_LEAST_MS_BETWEEN_FAILURES = 2_000


@dataclass(frozen=True, slots=True)
class Description:
    """What a provider says of itself."""

    authorization: str
    token: str
    keys: str
    userinfo: str
    logout: str
    """Empty if it has none, like `userinfo`."""
    takes_basic: bool
    """Whether the client's secret goes into a header; else into the body."""
    names_itself: bool
    """Whether its answers have `iss` in them."""


class Provider:
    """One provider. The console first contacts it when a user wants to sign in."""

    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._http = httpx.AsyncClient(timeout=settings.timeout_s, follow_redirects=False)
        self._lock = asyncio.Lock()
        self._description: tuple[float, Description] | None = None
        self._failure: tuple[float, str] | None = None
        """Remembered for a moment: strangers who ask again and again wait for one answer of a provider that is down."""
        self._keys: tuple[float, KeySet] | None = None

    async def close(self) -> None:
        await self._http.aclose()

    async def authorization_address(self, attempt: LoginAttempt, redirect_uri: str) -> str:
        """Where to send a browser to sign in."""
        description = await self._described()
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        return _with(description.authorization, asked)

    async def logout_address(self, back: str) -> str | None:
        """Where to send a browser to sign out; None if the provider has no such page."""
        description = await self._described()
        if not description.logout:
            return None
        return _with(description.logout, {"client_id": self.settings.client_id, "post_logout_redirect_uri": back})

    async def claims(self, attempt: LoginAttempt, code: str, iss: str | None, redirect_uri: str) -> Mapping[str, Any]:
        """What the provider says of who has signed in; IdentityError if the login does not count."""
        description = await self._described()
        if iss != self.settings.issuer and (iss is not None or description.names_itself):
            raise IdentityError("the answer is of another provider")
        told = await self._exchange(description, attempt, code, redirect_uri)
        token = told.get("id_token")
        if not isinstance(token, str) or len(token) > _MAX_TOKEN:
            raise ProviderError("the provider gave no ID token")
        claims = await self._checked(token, attempt)
        if all(claim(claims, each) is not None for each in (self.settings.name_claim, self.settings.role_claim)):
            return claims
        return {**await self._userinfo(description, told.get("access_token"), claims), **claims}

    async def _exchange(
        self, description: Description, attempt: LoginAttempt, code: str, redirect_uri: str
    ) -> Mapping[str, Any]:
        body = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": attempt.verifier,
        }
        client, secret = self.settings.client_id, self.settings.client_secret
        auth = None
        if secret and description.takes_basic:
            auth = httpx.BasicAuth(quote(client, safe=""), quote(secret, safe=""))
        else:
            body |= {"client_id": client} | ({"client_secret": secret} if secret else {})
        status, told = await self._ask("POST", description.token, data=body, auth=auth)
        if status in (400, 401, 403):
            kind = told.get("error")
            if kind == "invalid_grant":
                raise IdentityError("the provider does not accept the code: it has been used, or took too long")
            reason = kind if isinstance(kind, str) and kind.isidentifier() and len(kind) < 40 else "no reason"
            raise ProviderError(f"the provider refuses the console ({reason}): check client_id and client_secret")
        if status != 200:
            raise ProviderError(f"the provider answered with status {status}")
        return told

    async def _checked(self, token: str, attempt: LoginAttempt) -> Mapping[str, Any]:
        rules = TokenRules(issuer=self.settings.issuer, audience=self.settings.client_id)
        now_s = self._clock.now_ms() / 1000
        try:
            try:
                claims = read_claims(token, await self._known_keys(_KEYS_MS), rules, now_s)
            except TokenError as error:
                if not error.is_of_unknown_key:
                    raise
                claims = read_claims(token, await self._known_keys(_LEAST_MS_BETWEEN_KEYS), rules, now_s)
        except TokenError as error:
            raise IdentityError(f"the ID token does not count: {error}") from None
        nonce, azp, audience = claims.get("nonce"), claims.get("azp"), claims.get("aud")
        if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), attempt.nonce.encode()):
            raise IdentityError("the ID token does not count: it is of another login")
        is_of_several = isinstance(audience, list) and len(audience) > 1
        if (azp is not None or is_of_several) and azp != self.settings.client_id:
            raise IdentityError("the ID token does not count: it was made for another client")
        return claims

    async def _userinfo(
        self, description: Description, access_token: object, claims: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """What the ID token does not have."""
        if not description.userinfo or not isinstance(access_token, str) or not access_token.isascii():
            return {}
        status, told = await self._ask("GET", description.userinfo, headers={"authorization": f"Bearer {access_token}"})
        if status != 200:
            raise ProviderError(f"the provider answered with status {status} when the console requested more claims")
        if told.get("sub") != claims.get("sub"):
            raise IdentityError("the provider's claims are about somebody else")
        return told

    async def _described(self) -> Description:
        async with self._lock:
            now_ms = self._clock.monotonic_ms()
            if self._description is not None and now_ms - self._description[0] < _DESCRIPTION_MS:
                return self._description[1]
            if self._failure is not None and now_ms - self._failure[0] < _LEAST_MS_BETWEEN_FAILURES:
                raise ProviderError(self._failure[1])
            try:
                self._description = now_ms, await self._read_description()
            except ProviderError as error:
                self._failure = self._clock.monotonic_ms(), str(error)
                raise
            return self._description[1]

    async def _read_description(self) -> Description:
        status, told = await self._ask("GET", self.settings.issuer.rstrip("/") + _DISCOVERY)
        if status != 200:
            raise ProviderError(f"{self.settings.issuer} does not describe itself: status {status}")
        if told.get("issuer") != self.settings.issuer:
            raise ProviderError(f"what is at {self.settings.issuer} describes another issuer")
        return _description(told)

    async def _known_keys(self, fresh_ms: int) -> KeySet:
        address = (await self._described()).keys
        async with self._lock:
            now_ms = self._clock.monotonic_ms()
            if self._keys is not None and now_ms - self._keys[0] < fresh_ms:
                return self._keys[1]
            status, told = await self._ask("GET", address)
            try:
                if status != 200:
                    raise ValueError(f"it answered with status {status}")
                keys = KeySet(told)
            except ValueError as error:
                raise ProviderError(f"the keys of the provider cannot be read: {error}") from None
            self._keys = now_ms, keys
            return keys

    async def _ask(self, method: str, address: str, **more: Any) -> tuple[int, Mapping[str, Any]]:
        """The status and the JSON object of an answer; an empty one if it is none and the status says so."""
        auth = more.pop("auth", None)
        headers = {"accept": "application/json", **more.pop("headers", {})}
        received = bytearray()
        try:
            request = self._http.build_request(method, address, headers=headers, **more)
            answer = await self._http.send(request, auth=auth or httpx.Auth(), stream=True)
            try:
                async for part in answer.aiter_bytes():
                    received += part
                    if len(received) > _MAX_BYTES:
                        raise ProviderError("the provider's answer is too large")
            finally:
                await answer.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProviderError(f"the provider does not answer: {type(error).__name__}") from None
        try:
            told = json.loads(received)
        except (ValueError, RecursionError):
            told = None
        if isinstance(told, dict):
            return answer.status_code, told
        if answer.status_code == 200:
            raise ProviderError("the provider's answer is no JSON object")
        return answer.status_code, {}


def _description(told: Mapping[str, Any]) -> Description:
    methods = told.get("token_endpoint_auth_methods_supported")
    return Description(
        authorization=_address(told, "authorization_endpoint"),
        token=_address(told, "token_endpoint"),
        keys=_address(told, "jwks_uri"),
        userinfo=_address(told, "userinfo_endpoint", is_needed=False),
        logout=_address(told, "end_session_endpoint", is_needed=False),
        takes_basic=not isinstance(methods, list) or "client_secret_basic" in methods,
        names_itself=told.get("authorization_response_iss_parameter_supported") is True,
    )


def _address(told: Mapping[str, Any], name: str, *, is_needed: bool = True) -> str:
    found = told.get(name)
    if found is None and not is_needed:
        return ""
    try:
        if not isinstance(found, str) or not found.isprintable():
            raise ValueError
        return parse_key_set_url(found)
    except ValueError:
        raise ProviderError(f"the provider's {name} is not https://HOST/PATH, or http on this machine") from None


def _with(address: str, parameters: Mapping[str, str]) -> str:
    return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(parameters)}"
