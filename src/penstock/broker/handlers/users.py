"""Users and their passwords: DescribeUserScramCredentials, AlterUserScramCredentials (KIP-554)."""

from __future__ import annotations

from collections import Counter

from penstock.broker.requests.context import RequestContext
from penstock.cluster.decisions.users import UserChange
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ApiError, Code
from penstock.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from penstock.security.scram import ScramCredential, ScramMechanism, credential_of

_BY_NUMBER = {mechanism.number: mechanism for mechanism in ScramMechanism}


class UserHandlers:
    """What a user's password was is not kept: only what SCRAM needs of it."""

    def __init__(self, metadata: MetadataChanges) -> None:
        self._metadata = metadata

    async def describe(
        self, request: DescribeUserScramCredentialsRequest, context: RequestContext
    ) -> DescribeUserScramCredentialsResponse:
        users = self._metadata.image.users
        asked = Counter(user.name for user in request.users or ())
        results = []
        for name in asked or sorted(users):
            found = users.get(name)
            if asked[name] > 1:
                error = Code.DUPLICATE_RESOURCE, f"Cannot describe SCRAM credentials for the same user twice: {name}"
            elif found is None:
                error = (
                    Code.RESOURCE_NOT_FOUND,
                    f"Attempt to describe a user credential that does not exist: {name}",
                )
            else:
                infos = sorted((mechanism.number, credential.iterations) for mechanism, credential in found.items())
                described = tuple(CredentialInfo(mechanism=number, iterations=count) for number, count in infos)
                results.append(DescribeUserScramCredentialsResult(user=name, credential_infos=described))
                continue
            results.append(DescribeUserScramCredentialsResult(user=name, error_code=error[0], error_message=error[1]))
        return DescribeUserScramCredentialsResponse(results=tuple(results))

    async def alter(
        self, request: AlterUserScramCredentialsRequest, context: RequestContext
    ) -> AlterUserScramCredentialsResponse:
        changes: dict[str, dict[ScramMechanism, ScramCredential | None]] = {}
        errors: dict[str, ApiError] = {}
        asked: tuple[ScramCredentialDeletion | ScramCredentialUpsertion, ...] = (
            *request.deletions,
            *request.upsertions,
        )
        for each in asked:
            credentials = changes.setdefault(each.name, {})
            mechanism = _BY_NUMBER.get(each.mechanism)
            if mechanism is None:
                errors.setdefault(each.name, ApiError(Code.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"))
            elif mechanism in credentials:
                reason = "A user credential cannot be altered twice in the same request"
                errors.setdefault(each.name, ApiError(Code.DUPLICATE_RESOURCE, reason))
            elif not isinstance(each, ScramCredentialUpsertion):
                credentials[mechanism] = None
            elif len(each.salted_password) != mechanism.hash_bytes:
                reason = f"The salted password must have {mechanism.hash_bytes} bytes."
                errors.setdefault(each.name, ApiError(Code.UNACCEPTABLE_CREDENTIAL, reason))
            else:
                credentials[mechanism] = credential_of(mechanism, each.salted_password, each.salt, each.iterations)
        sound = {name: UserChange(found) for name, found in changes.items() if name not in errors}
        outcomes = await self._metadata.alter_users(sound) if sound else {}
        results = []
        for name in changes:
            error = errors.get(name) or outcomes.get(name)
            results.append(
                AlterUserScramCredentialsResult(
                    user=name,
                    error_code=Code.NONE if error is None else error.code,
                    error_message=None if error is None else error.message,
                )
            )
        return AlterUserScramCredentialsResponse(results=tuple(results))
