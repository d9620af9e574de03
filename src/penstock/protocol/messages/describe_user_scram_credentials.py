"""DescribeUserScramCredentials (50): which users there are, and for which mechanisms they have a password (KIP-554)."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, message, struct


@struct
class UserName:
    name: str


@message(flexible_from=0)
class DescribeUserScramCredentialsRequest:
    users: tuple[UserName, ...] | None


@struct
class CredentialInfo:
    mechanism: i8
    iterations: i32


@struct
class DescribeUserScramCredentialsResult:
    user: str
    error_code: i16 = 0
    error_message: str | None = None
    credential_infos: tuple[CredentialInfo, ...] = ()


@message(flexible_from=0)
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    results: tuple[DescribeUserScramCredentialsResult, ...] = ()
