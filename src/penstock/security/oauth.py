"""SASL OAUTHBEARER (RFC 7628, KIP-255) with tokens that are JSON Web Tokens (RFC 7519).

    client  n,,^Aauth=Bearer <token>^A^A                (^A is byte 1)
    server  nothing, or {"status":"invalid_token"}, which the client answers with ^A, and then the login fails

Rules:
- Only signatures that are made with a private key count: a token that names `none`, or an algorithm with a shared
  secret for which a public key could be passed off as that secret, is refused before anything is computed.
- A key is used only with the algorithms that its type allows, and with the one that it names, if it names one.
- A token must have an expiry, an issuer and an audience if those are set, and the claim that names the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.security.exchange import Accepted, Challenge, Later, Refused, Step

MECHANISM = "OAUTHBEARER"
_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""By the type of a key."""
_MESSAGE = re.compile(rb"n,(?:a=[^,\x01]*)?,\x01(.*\x01)\x01", re.DOTALL)
_PAIR = re.compile(rb"([A-Za-z]+)=([^\x01]*)\x01")
_INVALID = b'{"status":"invalid_token"}'
_MIN_RSA_BITS = 2048


class TokenError(Exception):
    """A token is not valid; the text has nothing of it."""

    def __init__(self, reason: str, *, is_of_unknown_key: bool = False) -> None:
        super().__init__(reason)
        self.is_of_unknown_key = is_of_unknown_key


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token has to say."""

    issuer: str | None = None
    audience: str | None = None
    principal_claim: str = "sub"
    clock_skew_s: float = 30.0


class KeySet:
    """The public keys with which tokens may be signed (a JSON Web Key Set, RFC 7517)."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        """Raises ValueError if it has no key that can be used."""
        from jwt import PyJWK, PyJWTError

        self._keys: list[tuple[str | None, str, str | None, Any]] = []
        described = content.get("keys")
        for each in described if isinstance(described, list) else ():
            kind = each.get("kty") if isinstance(each, dict) else None
            if not isinstance(kind, str) or kind not in _ALGORITHMS or each.get("use", "sig") != "sig":
                continue
            try:
                key = PyJWK({name: value for name, value in each.items() if name != "d"}, _ALGORITHMS[kind][0]).key
            except (PyJWTError, ValueError, KeyError, TypeError, AttributeError):
                # Of a curve that the library does not know, for instance, or with parts that are no texts.
                continue
            if kind == "RSA" and key.key_size < _MIN_RSA_BITS:
                continue
            self._keys.append((each.get("kid"), kind, each.get("alg"), key))
        if not self._keys:
            raise ValueError("it has no key with which a signature can be checked (RSA of 2048 bits, EC or OKP)")

    def candidates(self, kid: str | None, algorithm: str) -> list[Any]:
        """The keys that may have signed a token with this header."""
        return [
            key
            for its_kid, kind, its_algorithm, key in self._keys
            if algorithm in _ALGORITHMS[kind] and its_algorithm in (None, algorithm) and (kid is None or its_kid == kid)
        ]


def read_token(token: str, keys: KeySet, rules: TokenRules, now_s: float) -> tuple[str, float]:
    """The user of a token, and when it expires; TokenError if it is not valid."""
    claims = read_claims(token, keys, rules, now_s)
    user = claims.get(rules.principal_claim)
    if not isinstance(user, str) or not user or not user.isprintable():
        raise TokenError(f"its claim {rules.principal_claim} names no user")
    return user, claims["exp"] + rules.clock_skew_s


def read_claims(token: str, keys: KeySet, rules: TokenRules, now_s: float) -> Mapping[str, Any]:
    """The claims of a token, of any subject; TokenError if it is not valid."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, RecursionError):
        raise TokenError("it is not a JSON Web Token") from None
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or not any(algorithm in known for known in _ALGORITHMS.values()):
        raise TokenError("its algorithm is not one with a private key")
    # Claims are checked below, by our rules and our clock.
    unchecked = ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")
    options: Any = {f"verify_{claim}": False for claim in unchecked}
    for key in keys.candidates(kid if isinstance(kid, str) else None, algorithm):
        try:
            claims = jwt.decode(token, key, [algorithm], options=options)
            break
        except jwt.InvalidSignatureError:
            continue
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise TokenError("it cannot be decoded") from None
    else:
        raise TokenError("no known key has signed it", is_of_unknown_key=True)
    _check(claims, rules, now_s)
    return claims


def _check(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> None:
    expires, begins = _time(claims, "exp"), _time(claims, "nbf")
    if expires is None:
        raise TokenError("it has no expiry")
    if expires + rules.clock_skew_s <= now_s:
        raise TokenError("it has expired")
    if begins is not None and begins - rules.clock_skew_s > now_s:
        raise TokenError("it is not valid yet")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenError("it is from another issuer")
    audience = claims.get("aud")
    if rules.audience is not None and rules.audience not in (audience if isinstance(audience, list) else [audience]):
        raise TokenError("it is for another audience")


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TokenError(f"its claim {name} is no time")
    return float(value)


class BearerServer:
    """The broker's side of one login."""

    def __init__(self, read: Callable[[str], tuple[str, float]]) -> None:
        """`read` gives the user of a token and when it expires, or raises TokenError; it is called in a thread."""
        self._read = read
        self._refused: Refused | None = None

    def step(self, message: bytes) -> Step:
        if self._refused is not None:
            return self._refused
        matched = _MESSAGE.fullmatch(message)
        pairs = dict(_PAIR.findall(matched[1])) if matched else {}
        scheme, _, token = pairs.get(b"auth", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not token.strip():
            return Refused("the OAUTHBEARER message has no token")

        def check() -> Challenge | Accepted | Refused:
            try:
                user, expires_at_s = self._read(token.strip().decode("ascii"))
            except UnicodeDecodeError:
                self._refused = Refused("the token is refused: it is not a JSON Web Token")
            except TokenError as error:
                self._refused = Refused(f"the token is refused: {error}")
            else:
                return Accepted(user, expires_at_s=expires_at_s)
            # The client gets the error, and ends the login with a message of its own.
            return Challenge(_INVALID)

        return Later(check)


class BearerClient:
    """Shows a token."""

    def __init__(self, token: str) -> None:
        self._message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()

    def respond(self, challenge: bytes | None) -> bytes | None:
        if challenge is None:
            return self._message
        return b"\x01" if challenge else None
