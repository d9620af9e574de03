"""Users that log in with passwords."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from penstock.admin.connection import AdminConnection
from penstock.admin.errors import AdminError
from penstock.admin.results import Results
from penstock.admin.wire import call
from penstock.errors import Code, code_from
from penstock.protocol import apis
from penstock.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

DEFAULT_ITERATIONS = 8192
_NAMES = {ScramMechanism.SCRAM_SHA_256: "SCRAM-SHA-256", ScramMechanism.SCRAM_SHA_512: "SCRAM-SHA-512"}
MECHANISMS = tuple(_NAMES.values())
_NUMBERS = {number.value: name for number, name in _NAMES.items()}
_VERSION = 0


@dataclass(frozen=True, slots=True)
class UserDescription:
    """A user, and with which mechanisms it can log in: iterations by name."""

    name: str
    iterations: Mapping[str, int]


class UserOperations:
    """Of the cluster's metadata; users of files are known to their brokers alone."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    def list(self) -> Sequence[UserDescription]:
        # Over a connection of our own: the client library crashes the process if brokers refuse this request.
        deadline = self._connection.deadline()
        told = call(
            self._connection.listener(),
            apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
            _VERSION,
            DescribeUserScramCredentialsRequest(users=None),
            DescribeUserScramCredentialsResponse,
            self._connection.settings,
            deadline,
        )
        if told.error_code != Code.NONE:
            name = code_from(told.error_code).name
            raise AdminError(name, told.error_message or name)
        found = [
            UserDescription(
                user.user,
                {_NUMBERS[info.mechanism]: info.iterations for info in user.credential_infos},
            )
            for user in told.results
            if user.error_code == Code.NONE
        ]
        return sorted(found, key=lambda user: user.name)

    def set_password(
        self,
        name: str,
        password: str,
        *,
        mechanisms: Collection[str] = MECHANISMS,
        iterations: int = DEFAULT_ITERATIONS,
    ) -> None:
        """Adds a user, or changes its password. Only salted passwords are sent."""
        if not password:
            raise AdminError(Code.UNACCEPTABLE_CREDENTIAL.name, "the password is empty")
        infos = [ScramCredentialInfo(number, iterations) for number, known in _NAMES.items() if known in mechanisms]
        self._alter([UserScramCredentialUpsertion(name, info, password.encode()) for info in infos])[name]

    def remove(self, names: Collection[str]) -> Results[str, None]:
        """Removes users; connections that exist go on until they have to log in again."""
        known = {user.name: user for user in self.list()}
        missing = {
            name: AdminError(Code.RESOURCE_NOT_FOUND.name, "there is no such user")
            for name in names
            if name not in known
        }
        numbers = {known_name: number for number, known_name in _NAMES.items()}
        done = self._alter(
            [
                UserScramCredentialDeletion(name, numbers[mechanism])
                for name in names
                if name in known
                for mechanism in known[name].iterations
            ]
        )
        return Results(dict(done.values), {**missing, **done.errors})

    def _alter(self, alterations: Sequence[Any]) -> Results[str, None]:
        if not alterations:
            return Results({}, {})
        deadline = self._connection.deadline()
        asked = self._connection.send(
            lambda: self._connection.client.alter_user_scram_credentials(
                list(alterations), request_timeout=deadline.left_s
            )
        )
        return self._connection.results(asked, deadline)
