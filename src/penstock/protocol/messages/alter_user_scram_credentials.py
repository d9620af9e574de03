"""AlterUserScramCredentials (51): sets and deletes the passwords of users; only salted ones are sent (KIP-554)."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, message, struct


@struct
class ScramCredentialDeletion:
    name: str
    mechanism: i8


@struct
class ScramCredentialUpsertion:
    name: str
    mechanism: i8
    iterations: i32
    salt: bytes
    salted_password: bytes


@message(flexible_from=0)
class AlterUserScramCredentialsRequest:
    deletions: tuple[ScramCredentialDeletion, ...] = ()
    upsertions: tuple[ScramCredentialUpsertion, ...] = ()


@struct
class AlterUserScramCredentialsResult:
    user: str
    error_code: i16 = 0
    error_message: str | None = None


@message(flexible_from=0)
class AlterUserScramCredentialsResponse:
    throttle_time_ms: i32 = 0
    results: tuple[AlterUserScramCredentialsResult, ...] = ()
