"""Which credentials of users are taken."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from penstock.cluster.decisions.users import UserChange, alter_user
from penstock.cluster.metadata import MetadataImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId
from penstock.security.scram import ScramCredential, ScramMechanism

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def draft(**credentials: ScramCredential) -> MetadataDraft:
    users = {name: MappingProxyType({SHA_256: each}) for name, each in credentials.items()}
    return MetadataDraft(MetadataImage(1, "cluster", {}, BrokerId(1), {}, {}, users=users))


def credential(salt: bytes = b"salt", iterations: int = 4096) -> ScramCredential:
    return ScramCredential(salt, iterations, b"stored", b"server")


def test_a_salt_as_short_as_kafka_takes_it_is_taken() -> None:
    """librdkafka's own tests use four bytes."""
    assert alter_user(draft(), "alice", UserChange({SHA_256: credential()}), 10) == {SHA_256: credential()}


@pytest.mark.parametrize(
    "refused",
    [credential(b""), credential(b"s" * 129), credential(iterations=4095), credential(iterations=16_385)],
    ids=["no salt", "long salt", "few iterations", "many iterations"],
)
def test_credentials_out_of_bounds_are_refused(refused: ScramCredential) -> None:
    with pytest.raises(ApiError) as caught:
        alter_user(draft(), "alice", UserChange({SHA_256: refused}), 10)
    assert caught.value.code is Code.UNACCEPTABLE_CREDENTIAL


@pytest.mark.parametrize("name", ["", "a" * 257, "a\nb"], ids=["empty", "long", "not printable"])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        alter_user(draft(), name, UserChange({SHA_256: credential()}), 10)
    assert caught.value.code is Code.UNACCEPTABLE_CREDENTIAL


def test_the_other_mechanism_of_a_user_stays() -> None:
    after = alter_user(draft(alice=credential()), "alice", UserChange({SHA_512: credential(b"other")}), 1)
    assert after == {SHA_256: credential(), SHA_512: credential(b"other")}


def test_a_credential_that_is_not_there_cannot_be_deleted() -> None:
    with pytest.raises(ApiError) as caught:
        alter_user(draft(alice=credential()), "alice", UserChange({SHA_512: None}), 10)
    assert caught.value.code is Code.RESOURCE_NOT_FOUND


def test_there_are_no_more_users_than_allowed() -> None:
    with pytest.raises(ApiError) as caught:
        alter_user(draft(alice=credential()), "bob", UserChange({SHA_256: credential()}), 1)
    assert caught.value.code is Code.POLICY_VIOLATION
