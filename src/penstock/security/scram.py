"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): what is stored of a password, and both sides of a login.

    client  n,,n=alice,r=<client nonce>
    server  r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client  c=biws,r=<both nonces>,p=<proof>
    server  v=<signature>

Rules:
- A password is never stored. Neither the stored key nor a recorded login is enough to log in, because each login
  contains a nonce of the broker.
- A user that does not exist gets the same answers as one that does, up to the proof, which is then wrong.
- As in Kafka, passwords are UTF-8 bytes and not prepared by SASLprep; clients do not prepare them either.
- Channel binding and delegation tokens (KIP-48) are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from penstock.security.exchange import Accepted, Challenge, LoginError, Refused, Step

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16_384
"""Kafka's bounds. The upper one bounds what a login with PLAIN costs this broker."""
DEFAULT_ITERATIONS = 8192
MIN_SALT_BYTES, MAX_SALT_BYTES = 1, 128
_SALT_BYTES = 32
_NONCE_BYTES = 24
_MAX_NONCE_CHARS = 256
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
"""Printable, without the comma."""
_EXTENSION = re.compile(r"[A-Za-z]+=[^,]*")


class ScramMechanism(Enum):
    """The value is the name in SASL; `number` the one in Kafka's requests."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def number(self) -> int:
        return 1 if self is ScramMechanism.SHA_256 else 2

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def hash_bytes(self) -> int:
        return 32 if self is ScramMechanism.SHA_256 else 64

    def salted_password(self, password: bytes, salt: bytes, iterations: int) -> bytes:
        """Takes milliseconds, on purpose: not for the event loop."""
        return hashlib.pbkdf2_hmac(self.hash_name, password, salt, iterations)

    def mac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self.hash_name)

    def digest(self, text: bytes) -> bytes:
        return hashlib.new(self.hash_name, text).digest()


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What is stored of a password for one mechanism."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def credential_of(mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    stored_key = mechanism.digest(mechanism.mac(salted_password, b"Client Key"))
    return ScramCredential(salt, iterations, stored_key, mechanism.mac(salted_password, b"Server Key"))


def new_credential(
    mechanism: ScramMechanism, password: str, *, salt: bytes | None = None, iterations: int = DEFAULT_ITERATIONS
) -> ScramCredential:
    """A credential for a password. Takes milliseconds: not for the event loop."""
    chosen = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    salted = mechanism.salted_password(password.encode(), chosen, iterations)
    return credential_of(mechanism, salted, chosen, iterations)


def is_password_of(mechanism: ScramMechanism, credential: ScramCredential, password: bytes) -> bool:
    """Whether the credential was made from this password. Takes milliseconds: not for the event loop."""
    salted = mechanism.salted_password(password, credential.salt, credential.iterations)
    found = credential_of(mechanism, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(found.stored_key, credential.stored_key)


def new_nonce() -> str:
    return b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()


class ScramServer:
    """The broker's side of one login; for one only, because its nonce is."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential],
        nonce: str | None = None,
    ) -> None:
        """`find` gives the credential of a user; one that fits no password if there is no such user."""
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce or new_nonce()
        self._user: str | None = None
        self._credential: ScramCredential | None = None
        self._header = ""
        self._first_messages = ""

    def step(self, message: bytes) -> Step:
        try:
            text = message.decode()
            return self._first(text) if self._credential is None else self._final(text)
        except UnicodeDecodeError:
            return Refused("the SCRAM message is not UTF-8", self._user)
        except LoginError as error:
            return Refused(str(error), self._user)

    def _first(self, text: str) -> Step:
        header, bare = _split_header(text)
        fields = bare.split(",")
        if len(fields) < 2 or fields[0][:2] != "n=" or fields[1][:2] != "r=":
            raise LoginError("the first SCRAM message is not n=USER,r=NONCE")
        if any(not _EXTENSION.fullmatch(extension) for extension in fields[2:]):
            raise LoginError("the first SCRAM message has a malformed extension")
        if any(extension.startswith("tokenauth=") for extension in fields[2:]):
            raise LoginError("delegation tokens are not supported")
        user, nonce = _decoded_name(fields[0][2:]), fields[1][2:]
        self._user = user
        authorized = header.split(",")[1]
        if authorized and _decoded_name(authorized.removeprefix("a=")) != user:
            raise LoginError("a user cannot log in as another one")
        if len(nonce) > _MAX_NONCE_CHARS or not _NONCE.fullmatch(nonce):
            raise LoginError("the client's nonce is not printable or too long")
        credential = self._find(user)
        self._header, self._credential = header, credential
        answer = f"r={nonce}{self._nonce},s={b64encode(credential.salt).decode()},i={credential.iterations}"
        self._first_messages = f"{bare},{answer},"
        return Challenge(answer.encode())

    def _final(self, text: str) -> Step:
        credential, mechanism = self._credential, self._mechanism
        assert credential is not None and self._user is not None
        without_proof, separator, proof_text = text.rpartition(",p=")
        fields = without_proof.split(",")
        if not separator or len(fields) < 2 or fields[0][:2] != "c=" or fields[1][:2] != "r=":
            raise LoginError("the last SCRAM message is not c=BINDING,r=NONCE,p=PROOF")
        if _decoded(fields[0][2:]) != self._header.encode():
            raise LoginError("the channel binding differs from that of the first SCRAM message")
        # As in Kafka, the end is compared: older versions of librdkafka say their nonce twice. Ours is the new one.
        if not hmac.compare_digest(fields[1][2:].encode()[-len(self._nonce) :], self._nonce.encode()):
            raise LoginError("the nonce is not the one of this login")
        proof = _decoded(proof_text)
        signed = f"{self._first_messages}{without_proof}".encode()
        signature = mechanism.mac(credential.stored_key, signed)
        if len(proof) != len(signature):
            raise LoginError("the proof has the wrong length")
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        if not hmac.compare_digest(mechanism.digest(client_key), credential.stored_key):
            return Refused("unknown user or wrong password", self._user)
        answer = b"v=" + b64encode(mechanism.mac(credential.server_key, signed))
        return Accepted(self._user, answer)


class ScramClient:
    """The client's side of one login; it checks that the server knows the password too."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str | None = None) -> None:
        self._mechanism = mechanism
        self._password = password.encode()
        self._nonce = nonce or new_nonce()
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._signature: bytes | None = None
        self._is_done = False

    def respond(self, challenge: bytes | None) -> bytes | None:
        """The next message; None when the server has proved itself, LoginError if it has not.

        Takes milliseconds with the first challenge: not for the event loop.
        """
        if challenge is None:
            return f"n,,{self._bare}".encode()
        try:
            text = challenge.decode()
        except UnicodeDecodeError:
            raise LoginError("the server's SCRAM message is not UTF-8") from None
        if self._signature is None:
            return self._final(text)
        if not text.startswith("v=") or not hmac.compare_digest(_decoded(text[2:]), self._signature):
            raise LoginError("the server does not know the password")
        return None

    def _final(self, text: str) -> bytes:
        mechanism, fields = self._mechanism, text.split(",")
        if [field[:2] for field in fields[:3]] != ["r=", "s=", "i="] or not fields[2][2:].isdecimal():
            raise LoginError("the server's first SCRAM message is not r=NONCE,s=SALT,i=ITERATIONS")
        nonce, salt, iterations = fields[0][2:], _decoded(fields[1][2:]), int(fields[2][2:])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise LoginError("the server's nonce does not continue ours")
        if not MIN_ITERATIONS <= iterations <= 1_000_000:
            raise LoginError(f"the server asks for {iterations} iterations")
        salted = mechanism.salted_password(self._password, salt, iterations)
        client_key = mechanism.mac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        signature = mechanism.mac(mechanism.digest(client_key), signed)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self._signature = mechanism.mac(mechanism.mac(salted, b"Server Key"), signed)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()


def _split_header(text: str) -> tuple[str, str]:
    """The GS2 header with its two commas, and what follows."""
    binding, first, rest = text.partition(",")
    authorized, second, bare = rest.partition(",")
    if not first or not second or (authorized and not authorized.startswith("a=")):
        raise LoginError("the first SCRAM message does not begin with n,,")
    if binding not in ("n", "y"):
        raise LoginError("channel binding is not supported")
    return f"{binding},{authorized},", bare


def _decoded_name(text: str) -> str:
    name = text.replace("=2C", ",").replace("=3D", "=")
    if not name or "=" in text.replace("=2C", "").replace("=3D", ""):
        raise LoginError("the user name of the SCRAM message is empty or malformed")
    return name


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise LoginError("the SCRAM message has malformed base64") from None
