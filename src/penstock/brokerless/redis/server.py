"""Calls to a Redis server: connections, scripts, and what its errors mean for a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from redis.retry import Retry

from penstock.brokerless.store import FencedClaimError, StoreAwayError, StoreRefusedError
from penstock.sdk.errors import InvalidInputError

TIMEOUT_S = 5.0
"""How long a call waits for its answer."""
LEAST_VERSION = (6, 2)
_LATER = ("LOADING", "BUSY", "OOM", "READONLY", "MISCONF", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS")
"""Errors of a server that may be over soon; it has done nothing."""
_NOT_NOW = (OutOfMemoryError, ReadOnlyError)
"""Those that redis-py has a class for, and takes the word from the text of."""

Value = str | bytes | int
Script = Callable[..., Any]


class RedisServer:
    """A server with a prefix for all keys. Thread-safe; connects when it is first used."""

    def __init__(self, url: str, shown: str, prefix: str) -> None:
        """`shown` is the address for people. Raises `InvalidInputError`."""
        self.address = shown
        self._prefix = f"{{{prefix}}}:"
        try:
            self._redis = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
            )
        except (ValueError, AttributeError) as error:
            raise InvalidInputError(f"{shown}: {error}; expected an address such as redis://host:6379/0") from None
        self._scripts: dict[str, Script] = {}
        self._is_checked = False

    def key(self, name: str) -> str:
        return self._prefix + name

    def call(self, script: str, *args: Value) -> Any:
        """Run a script. Raises `StoreAwayError`, `FencedClaimError` and `StoreRefusedError`."""
        registered = self._scripts.get(script)
        if registered is None:
            registered = self._scripts[script] = self._redis.register_script(script)
        with self._translated():
            self._check_version()
            return registered(keys=[self._prefix], args=list(args))

    def command(self, *args: Value) -> Any:
        """Run a command, and return what the server answers, as it is."""
        with self._translated():
            self._check_version()
            untyped: Any = self._redis
            return untyped.execute_command(*args)

    def read_streams(self, ids: dict[str, str], block_ms: int) -> bool:
        """Wait until a stream has an entry behind its id; whether one has."""
        with self._translated():
            streams: Any = ids
            return bool(self._redis.xread(streams, count=1, block=block_ms))

    def close(self) -> None:
        self._redis.close()

    def _check_version(self) -> None:
        if self._is_checked:
            return
        info: Any = self._redis.info("server")
        version = str(info["redis_version"])
        if tuple(int(part) for part in version.split(".")[:2]) < LEAST_VERSION:
            raise StoreRefusedError(f"{self.address} is Redis {version}; 6.2 or newer is needed")
        self._is_checked = True

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except _NOT_NOW as error:
            raise StoreAwayError(f"{self.address}: {error}") from None
        except ResponseError as error:
            raise self._refusal(str(error)) from None
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise StoreAwayError(f"{self.address}: {error}", is_outcome_unknown=True) from None
        except redis.RedisError as error:
            raise StoreAwayError(f"{self.address}: {error}", is_outcome_unknown=True) from None

    def _refusal(self, text: str) -> StoreAwayError | FencedClaimError | StoreRefusedError:
        word, _, rest = text.partition(" ")
        if word == "FENCED":
            return FencedClaimError(f"another client uses the transactional id {rest}; nothing was done")
        if word == "CLAIMED":
            return FencedClaimError(f"another member of the group has {rest}; nothing was done")
        if word == "DELAYED":
            return StoreAwayError(f"{self.address} keeps {rest} delayed messages and takes no more now")
        if text.startswith(_LATER) or any(f"{later} " in text for later in _LATER):
            return StoreAwayError(f"{self.address}: {text}")
        return StoreRefusedError(f"{self.address}: {text}")


def texts(values: Sequence[bytes]) -> list[str]:
    return [value.decode() for value in values]
