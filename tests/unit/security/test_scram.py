"""SCRAM on its own: the published example, what is refused, and that names cannot be probed."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest

from penstock.security.exchange import Accepted, Challenge, LoginError, Refused
from penstock.security.scram import (
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_of,
    is_password_of,
    new_credential,
)
from penstock.security.users import UserDirectory

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512

# RFC 7677, section 3.
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def pencil(user: str = "user") -> ScramCredential:
    return new_credential(SHA_256, "pencil", salt=SALT, iterations=4096)


def test_the_server_of_the_published_example() -> None:
    server = ScramServer(SHA_256, pencil, SERVER_NONCE)
    assert server.step(CLIENT_FIRST) == Challenge(SERVER_FIRST)
    assert server.step(CLIENT_FINAL) == Accepted("user", SERVER_FINAL)


def test_the_client_of_the_published_example() -> None:
    client = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE)
    assert client.respond(None) == CLIENT_FIRST
    assert client.respond(SERVER_FIRST) == CLIENT_FINAL
    assert client.respond(SERVER_FINAL) is None


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("user", ["alice", "a=b,c", "ünï", "=2C"])
def test_both_sides_agree_on_any_name(mechanism: ScramMechanism, user: str) -> None:
    credential = new_credential(mechanism, "geheim, ja=nein", iterations=4096)
    asked = []

    def find(name: str) -> ScramCredential:
        asked.append(name)
        return credential

    client, server = ScramClient(mechanism, user, "geheim, ja=nein"), ScramServer(mechanism, find)
    message, step = client.respond(None), None
    while message is not None:
        step = server.step(message)
        assert isinstance(step, Challenge | Accepted)
        message = client.respond(step.message)
    assert isinstance(step, Accepted) and step.user == user
    assert asked == [user]


def test_a_wrong_password_is_refused_with_the_words_of_an_unknown_user() -> None:
    directory = UserDirectory(lambda: {"alice": {SHA_256: pencil()}}, lambda: b"secret")

    def outcome(user: str) -> tuple[str, int, str]:
        client = ScramClient(SHA_256, user, "wrong")
        server = ScramServer(SHA_256, lambda name: directory.of_mechanism(name, SHA_256))
        first = client.respond(None)
        assert first is not None
        challenge = server.step(first)
        assert isinstance(challenge, Challenge)
        final = client.respond(challenge.message)
        assert final is not None
        refused = server.step(final)
        assert isinstance(refused, Refused)
        salt = challenge.message.split(b",")[1]
        return refused.reason, len(salt), challenge.message.split(b",")[2].decode()

    assert outcome("alice") == outcome("mallory")


def test_the_salt_of_an_unknown_user_is_the_same_at_each_try_and_another_for_each_name() -> None:
    one, other = (UserDirectory(dict, lambda: b"secret") for _ in range(2))
    salts = {name: one.of_mechanism(name, SHA_512).salt for name in ("mallory", "eve")}
    assert salts == {name: other.of_mechanism(name, SHA_512).salt for name in ("mallory", "eve")}
    assert len(set(salts.values())) == 2
    of_another_cluster = UserDirectory(dict, lambda: b"another")
    assert of_another_cluster.of_mechanism("eve", SHA_512).salt != salts["eve"]


def test_a_recorded_login_cannot_be_replayed() -> None:
    client, server = ScramClient(SHA_256, "user", "pencil"), ScramServer(SHA_256, pencil)
    first = client.respond(None)
    assert first is not None
    challenge = server.step(first)
    assert isinstance(challenge, Challenge)
    final = client.respond(challenge.message)
    assert final is not None
    assert isinstance(server.step(final), Accepted)
    again = ScramServer(SHA_256, pencil)
    assert isinstance(again.step(first), Challenge)
    assert again.step(final) == Refused("the nonce is not the one of this login", "user")


def test_a_client_that_says_its_nonce_twice_is_taken() -> None:
    """Older versions of librdkafka do; the proof is over what was said."""
    client, server = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE), ScramServer(SHA_256, pencil, SERVER_NONCE)
    server.step(CLIENT_FIRST)
    client.respond(None)
    twice = SERVER_FIRST.replace(b"r=", b"r=" + CLIENT_NONCE.encode())
    # What such a client signs has the server's message as it was, and its own with the nonce twice.
    salted = SHA_256.salted_password(b"pencil", SALT, 4096)
    key = SHA_256.mac(salted, b"Client Key")
    said = b"c=biws," + twice.split(b",")[0]
    signed = b",".join((CLIENT_FIRST[3:], SERVER_FIRST, said))
    proof = bytes(a ^ b for a, b in zip(key, SHA_256.mac(SHA_256.digest(key), signed), strict=True))
    assert isinstance(server.step(said + b",p=" + b64encode(proof)), Accepted)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"", "does not begin"),
        (b"p=tls-unique,,n=user,r=abc", "channel binding"),
        (b"n,,n=user", "not n=USER"),
        (b"n,,m=x,n=user,r=abc", "not n=USER"),
        (b"n,,n=,r=abc", "empty"),
        (b"n,,n=a=b,r=abc", "malformed"),
        (b"n,a=root,n=user,r=abc", "as another"),
        (b"n,,n=user,r=", "nonce"),
        (b"n,,n=user,r=" + b"x" * 257, "nonce"),
        (b"n,,n=user,r=abc,tokenauth=true", "delegation tokens"),
        (b"\xff", "UTF-8"),
    ],
)
def test_malformed_first_messages_are_refused(first: bytes, reason: str) -> None:
    step = ScramServer(SHA_256, pencil).step(first)
    assert isinstance(step, Refused) and reason in step.reason


@pytest.mark.parametrize(
    "final",
    [
        CLIENT_FINAL.replace(b"c=biws", b"c=eSws"),
        CLIENT_FINAL.replace(b"k0,p=", b"k1,p="),
        CLIENT_FINAL.replace(b"p=dHzb", b"p=dHzc"),
        CLIENT_FINAL.replace(b"p=dHzb", b"p=!!!!"),
        CLIENT_FINAL.replace(b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p=AAAA"),
        b"c=biws",
        b"",
    ],
)
def test_changed_last_messages_are_refused(final: bytes) -> None:
    server = ScramServer(SHA_256, pencil, SERVER_NONCE)
    server.step(CLIENT_FIRST)
    assert isinstance(server.step(final), Refused)


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=other,s=QUFBQUFBQUE=,i=4096",
        f"r={CLIENT_NONCE},s=QUFBQUFBQUE=,i=4096".encode(),
        SERVER_FIRST.replace(b"i=4096", b"i=1"),
        SERVER_FIRST.replace(b"i=4096", b"i=99999999"),
        b"e=unknown-user",
    ],
)
def test_the_client_refuses_a_server_that_cheats(challenge: bytes) -> None:
    client = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE)
    client.respond(None)
    with pytest.raises(LoginError):
        client.respond(challenge)


def test_the_client_refuses_a_server_that_does_not_know_the_password() -> None:
    client = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE)
    client.respond(None)
    client.respond(SERVER_FIRST)
    with pytest.raises(LoginError, match="does not know the password"):
        client.respond(b"v=AAAA")


def test_a_credential_from_a_salted_password_is_that_of_the_password() -> None:
    salted = SHA_512.salted_password(b"secret", SALT, 4096)
    credential = credential_of(SHA_512, salted, SALT, 4096)
    assert credential == new_credential(SHA_512, "secret", salt=SALT, iterations=4096)
    assert is_password_of(SHA_512, credential, b"secret")
    assert not is_password_of(SHA_512, credential, b"Secret")


def test_a_credential_shows_no_key() -> None:
    shown = repr(pencil())
    assert "key" not in shown
