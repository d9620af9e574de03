"""Tokens: which are taken, and the known ways to forge one."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from penstock.security.exchange import Accepted, Challenge, Later, Refused
from penstock.security.oauth import BearerClient, BearerServer, KeySet, TokenError, TokenRules, read_token

NOW = 1_700_000_000
RULES = TokenRules("https://issuer", "penstock")
CLAIMS = {"sub": "alice", "iss": "https://issuer", "aud": "penstock", "exp": NOW + 60}

RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
KEYS = KeySet(
    {
        "keys": [
            {**RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "rsa", "use": "sig"},
            {**ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True), "kid": "ec", "alg": "ES256"},
            {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
        ]
    }
)


def token(claims: dict[str, Any] | None = None, key: Any = RSA_KEY, algorithm: str = "RS256", **header: Any) -> str:
    return jwt.encode({**CLAIMS, **(claims or {})}, key, algorithm, headers=header)


def part(content: object) -> str:
    return urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


@pytest.mark.parametrize(("key", "algorithm"), [(RSA_KEY, "RS256"), (RSA_KEY, "PS512"), (EC_KEY, "ES256")])
def test_signed_tokens_are_taken(key: Any, algorithm: str) -> None:
    assert read_token(token(key=key, algorithm=algorithm), KEYS, RULES, NOW) == ("alice", NOW + 90)


@pytest.mark.parametrize(
    "unusable",
    [
        {"kty": "EC", "crv": "brainpoolP256r1", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "RSA", "n": 5, "e": {}},
        {"kty": "OKP", "crv": []},
        {"kty": ["RSA"]},
        "no key",
    ],
)
def test_a_key_that_cannot_be_used_leaves_the_others(unusable: object) -> None:
    keys = KeySet({"keys": [unusable, RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True)]})
    assert read_token(token(), keys, RULES, NOW)[0] == "alice"


def test_the_key_may_be_named_and_the_audience_be_one_of_several() -> None:
    assert read_token(token({"aud": ["x", "penstock"]}, kid="rsa"), KEYS, RULES, NOW)[0] == "alice"


def test_another_claim_may_name_the_user() -> None:
    rules = TokenRules("https://issuer", "penstock", "client_id")
    assert read_token(token({"client_id": "svc"}), KEYS, rules, NOW)[0] == "svc"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": NOW - 31}, "expired"),
        ({"exp": None}, "no expiry"),
        ({"exp": "soon"}, "no time"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iss": "https://mallory"}, "another issuer"),
        ({"aud": "other"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"sub": ""}, "names no user"),
        ({"sub": ["alice"]}, "names no user"),
        ({"sub": "a\nb"}, "names no user"),
    ],
)
def test_claims_that_are_refused(claims: dict[str, Any], reason: str) -> None:
    head = {"alg": "RS256"}
    signed = jwt.api_jws.encode(json.dumps({**CLAIMS, **claims}).encode(), RSA_KEY, "RS256", headers=head)
    with pytest.raises(TokenError, match=reason):
        read_token(signed, KEYS, RULES, NOW)


def test_clocks_may_differ_a_little() -> None:
    assert read_token(token({"exp": NOW - 29, "nbf": NOW + 29}), KEYS, RULES, NOW)[0] == "alice"


@pytest.mark.parametrize("name", ["none", "None", "NONE"])
def test_a_token_without_a_signature_is_refused(name: str) -> None:
    forged = f"{part({'alg': name, 'typ': 'JWT'})}.{part(CLAIMS)}."
    with pytest.raises(TokenError, match="algorithm"):
        read_token(forged, KEYS, RULES, NOW)


def test_a_public_key_cannot_be_passed_off_as_a_shared_secret() -> None:
    import hashlib
    import hmac

    public = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'rsa'})}.{part(CLAIMS)}"
    signature = hmac.digest(public, signed.encode(), hashlib.sha256)
    with pytest.raises(TokenError, match="algorithm"):
        read_token(f"{signed}.{urlsafe_b64encode(signature).decode().rstrip('=')}", KEYS, RULES, NOW)


def test_a_token_of_another_key_is_refused() -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    with pytest.raises(TokenError, match="no known key") as caught:
        read_token(token(key=stranger), KEYS, RULES, NOW)
    assert caught.value.is_of_unknown_key
    with pytest.raises(TokenError, match="no known key"):
        read_token(token(key=stranger, kid="rsa"), KEYS, RULES, NOW)


def test_a_changed_token_is_refused() -> None:
    head, _, signature = token().split(".")
    with pytest.raises(TokenError, match="no known key"):
        read_token(f"{head}.{part({**CLAIMS, 'sub': 'root'})}.{signature}", KEYS, RULES, NOW)


@pytest.mark.parametrize("text", ["", "abc", "a.b.c", "....", "é", f"{'W1tb' * 8_000}.e30.x"])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(TokenError):
        read_token(text, KEYS, RULES, NOW)


def test_weak_and_shared_keys_are_no_keys() -> None:
    weak = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
    for keys in ([], [weak], [{"kty": "oct", "k": "c2VjcmV0"}], ["x"]):
        with pytest.raises(ValueError, match="no key"):
            KeySet({"keys": keys})


def server() -> BearerServer:
    return BearerServer(lambda text: read_token(text, KEYS, RULES, NOW))


def test_a_login() -> None:
    message = BearerClient(token()).respond(None)
    assert message is not None
    step = server().step(message)
    assert isinstance(step, Later)
    assert step.work() == Accepted("alice", expires_at_s=NOW + 90)


def test_a_refused_token_is_told_and_then_ends_the_login() -> None:
    login, client = server(), BearerClient(token({"exp": NOW - 100}))
    message = client.respond(None)
    assert message is not None
    step = login.step(message)
    assert isinstance(step, Later)
    told = step.work()
    assert told == Challenge(b'{"status":"invalid_token"}')
    answer = client.respond(told.message)
    assert answer == b"\x01"
    assert login.step(answer) == Refused("the token is refused: it has expired")


@pytest.mark.parametrize("message", [b"", b"n,,", b"n,,\x01auth=Basic x\x01\x01", b"y,,\x01auth=Bearer x\x01\x01"])
def test_malformed_messages_are_refused(message: bytes) -> None:
    assert isinstance(server().step(message), Refused)
