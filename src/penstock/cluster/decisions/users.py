"""Decisions about the passwords of users: their new credentials, or why a change is refused (KIP-554)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import ApiError, Code
from penstock.security.scram import (
    MAX_ITERATIONS,
    MAX_SALT_BYTES,
    MIN_ITERATIONS,
    MIN_SALT_BYTES,
    ScramCredential,
    ScramMechanism,
)
from penstock.security.users import Credentials

_MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class UserChange:
    """What shall become of one user: credentials by mechanism, None to delete one."""

    credentials: Mapping[ScramMechanism, ScramCredential | None] = field(default_factory=dict)


def alter_user(draft: MetadataDraft, name: str, change: UserChange, max_users: int) -> Credentials:
    """The new credentials of a user; none if it is gone."""
    if not name:
        raise ApiError(Code.UNACCEPTABLE_CREDENTIAL, "Username must not be empty.")
    if len(name) > _MAX_NAME_CHARS or not name.isprintable():
        raise ApiError(
            Code.UNACCEPTABLE_CREDENTIAL, f"A user name has up to {_MAX_NAME_CHARS} characters that can be printed."
        )
    before = draft.users.get(name, {})
    if not before and name not in draft.users and len(draft.users) >= max_users:
        raise ApiError(Code.POLICY_VIOLATION, f"There may be no more than {max_users} users.")
    after = dict(before)
    for mechanism, credential in change.credentials.items():
        if credential is not None:
            _check(credential)
            after[mechanism] = credential
        elif after.pop(mechanism, None) is None:
            raise ApiError(Code.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist.")
    return after


def _check(credential: ScramCredential) -> None:
    if credential.iterations < MIN_ITERATIONS:
        raise ApiError(Code.UNACCEPTABLE_CREDENTIAL, f"Too few iterations: at least {MIN_ITERATIONS} are needed.")
    if credential.iterations > MAX_ITERATIONS:
        raise ApiError(Code.UNACCEPTABLE_CREDENTIAL, f"Too many iterations: at most {MAX_ITERATIONS} are allowed.")
    if not MIN_SALT_BYTES <= len(credential.salt) <= MAX_SALT_BYTES:
        raise ApiError(Code.UNACCEPTABLE_CREDENTIAL, f"The salt must have {MIN_SALT_BYTES} to {MAX_SALT_BYTES} bytes.")
