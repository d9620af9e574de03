"""The passwords of database groups: the metadata has them encrypted, and all brokers share the key.

The key is a line of text in the file `sql.key_file` (Fernet: AES-128-CBC and HMAC-SHA256). Neither it nor a password is
in any message.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import stat
from pathlib import Path

from penstock.config.database_address import DatabaseAddress
from penstock.errors import ConfigError
from penstock.extras import missing_extra
from penstock.logs import fields

try:
    from cryptography.fernet import Fernet, InvalidToken
except ModuleNotFoundError as error:
    raise missing_extra(error, "sql.key_file") or error from error

log = logging.getLogger(__name__)

_KEY_BYTES = 32
_FINGERPRINT_DIGITS = 16


def new_key() -> str:
    """A random key, as one line of text."""
    return Fernet.generate_key().decode()


class PasswordKey:
    """Encrypts and decrypts passwords."""

    def __init__(self, text: str) -> None:
        """A ConfigError if the text is not a key."""
        try:
            raw = base64.b64decode(text.strip().encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raw = b""
        if len(raw) != _KEY_BYTES:
            raise ConfigError("does not have a key in it; make one with: penstock dbnode key")
        self._fernet = Fernet(base64.urlsafe_b64encode(raw))
        self.fingerprint = hashlib.sha256(b"penstock database key " + raw).hexdigest()[:_FINGERPRINT_DIGITS]
        """The same for the same key; says nothing about it."""

    @classmethod
    def read(cls, path: Path) -> PasswordKey:
        """The key in a file; a ConfigError names the setting. Warns if every user of the host can read the file."""
        try:
            text = path.read_text("utf-8")
            mode = path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"sql.key_file = '{path}': cannot be read: {reason}") from None
        try:
            key = cls(text)
        except ConfigError as error:
            raise ConfigError(f"sql.key_file = '{path}': {error}") from None
        if mode & stat.S_IROTH:
            log.warning("every user of this host can read the key of database passwords", extra=fields(file=str(path)))
        return key

    def encrypt(self, password: str) -> str:
        return self._fernet.encrypt(password.encode()).decode()

    def decrypt(self, secret: str) -> str:
        """A ConfigError if it was encrypted with another key."""
        try:
            return self._fernet.decrypt(secret.encode()).decode()
        except InvalidToken:
            raise ConfigError("the password was encrypted with another key than that in sql.key_file") from None

    def address(self, public_text: str, secret: str) -> DatabaseAddress:
        """The address of a server with its password."""
        return DatabaseAddress.parse(public_text).with_password(self.decrypt(secret))
