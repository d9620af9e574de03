"""The public keys with which tokens are signed: from a file or an address, read again and again in a thread.

Rules:
- Keys that cannot be read again are logged, and those that are known stay in use.
- A token of an unknown key makes the broker look for new keys, at most once in a while: any client can send
  such tokens.
- An address is https, or http on this machine: an attacker who changes the answer on its way could sign tokens.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import urllib.request
from pathlib import Path

from penstock.config.security import SecuritySettings, parse_key_set_url
from penstock.errors import ConfigError
from penstock.extras import missing_extra
from penstock.logs import fields
from penstock.security.oauth import KeySet, TokenError, TokenRules, read_token

logger = logging.getLogger(__name__)

_MAX_BYTES = 1 << 20
_TIMEOUT_S = 10.0
_LEAST_S_BETWEEN_READS = 5.0


class TokenKeys:
    """Reads tokens with the keys that it knows."""

    def __init__(self, settings: SecuritySettings) -> None:
        self._file = settings.oauth_jwks_file
        self._url = settings.oauth_jwks_url
        self._every_s = settings.oauth_jwks_refresh_ms / 1000
        self._rules = TokenRules(
            settings.oauth_issuer,
            settings.oauth_audience,
            settings.oauth_principal_claim,
            settings.oauth_clock_skew_ms / 1000,
        )
        self._keys: KeySet | None = None
        self._wanted = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """A file has to be there; an address may come later."""
        try:
            self._keys = await asyncio.to_thread(self._load)
        except ModuleNotFoundError as error:
            raise missing_extra(error, "OAUTHBEARER in security.sasl_mechanisms") or error from None
        except ConfigError as error:
            if self._file is not None:
                raise
            logger.error("keys of tokens cannot be read; OAUTHBEARER waits for them", extra=fields(reason=str(error)))
        self._task = self._loop.create_task(self._run(), name="penstock-token-keys")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def reload(self) -> None:
        self._wanted.set()

    def read(self, token: str, now_s: float) -> tuple[str, float]:
        """The user of a token, and when it expires; TokenError if it is not valid. For a thread."""
        keys = self._keys
        if keys is None:
            raise TokenError("the keys of tokens are not known yet")
        try:
            return read_token(token, keys, self._rules, now_s)
        except TokenError as error:
            if error.is_of_unknown_key:
                self._loop.call_soon_threadsafe(self._wanted.set)
            raise

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LEAST_S_BETWEEN_READS)
            try:
                async with asyncio.timeout(self._every_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                self._keys = await asyncio.to_thread(self._load)
            except ConfigError as error:
                logger.error(
                    "keys of tokens cannot be read again; the old ones stay in use", extra=fields(reason=str(error))
                )

    def _load(self) -> KeySet:
        source = self._file or self._url
        assert source is not None
        name = f"security.oauth_jwks_{'url' if self._file is None else 'file'} = '{source}'"
        try:
            content = json.loads(_content_of(source))
            if not isinstance(content, dict):
                raise ValueError("it is not a JSON Web Key Set")
            return KeySet(content)
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise ConfigError(f"{name}: the keys cannot be read: {error}") from None


def _content_of(source: Path | str) -> bytes:
    if isinstance(source, Path):
        with source.open("rb") as file:
            return _bounded(file.read(_MAX_BYTES + 1))
    opener = urllib.request.build_opener(_SameSafety())
    with opener.open(source, timeout=_TIMEOUT_S) as response:
        return _bounded(response.read(_MAX_BYTES + 1))


def _bounded(content: bytes) -> bytes:
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes")
    return content


class _SameSafety(urllib.request.HTTPRedirectHandler):
    """An answer may send us on, but not to an address that could not be set."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        parse_key_set_url(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)
