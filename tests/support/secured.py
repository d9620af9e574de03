"""What a cluster needs whose brokers encrypt, and ask for logins and permissions; and who may do what there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from support.access import Access, librdkafka
from support.certificates import Authority, tls_settings
from support.sasl import ADMIN, PASSWORD, connect, password_file
from support.waiting import until

BROKERS_USER, BROKERS_PASSWORD = "broker", "among brokers"
IMPATIENT = {
    "cluster.lease_ms": 2_000,
    "cluster.lag_time_max_ms": 2_000,
    "topic.min.insync.replicas": 2,
    "groups.offsets_partitions": 4,
    "groups.initial_rebalance_delay_ms": 200,
}
"""Settings of three brokers of which one after the other is restarted."""
EVERYTHING = (
    (ResourceType.TOPIC, "*", AclOperation.ALL),
    (ResourceType.GROUP, "*", AclOperation.ALL),
    (ResourceType.TRANSACTIONAL_ID, "*", AclOperation.ALL),
    (ResourceType.BROKER, "kafka-cluster", AclOperation.ALL),
)
"""What a client may need; by its own name and not as a super user, so that every request is decided by ACLs."""

Allowed = tuple[ResourceType, str, AclOperation]


class Secured:
    """The files that brokers read, and the user that can do everything."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.authority = Authority(folder / "ca")
        self.certificate = tls_settings(self.authority)
        self.brokers_password_file = password_file(folder, "brokers-password", BROKERS_PASSWORD)
        self.admin = self.user(ADMIN, PASSWORD)

    def user(self, name: str, password: str) -> Access:
        return Access(name, password, self.authority.file)

    @property
    def logins(self) -> dict[str, object]:
        """Of brokers whose listeners may ask for logins."""
        return {
            **self.certificate,
            "security.admin_user": ADMIN,
            "security.admin_password_file": password_file(self._folder),
            "security.inter_broker_user": BROKERS_USER,
            "security.inter_broker_password_file": self.brokers_password_file,
        }

    def settings(self, inter_broker: str = "SASL_SSL") -> dict[str, object]:
        """Of brokers that are closed."""
        return {
            **self.logins,
            "security.protocols": f"PLAINTEXT:SASL_SSL,INTER_BROKER:{inter_broker}",
            "security.authorizer": "acls",
        }


def admin_client(bootstrap: str) -> AdminClient:
    return AdminClient({**librdkafka(bootstrap), "log_level": 0})


def set_password(admin: AdminClient, user: str, password: str) -> None:
    """Of a user that may be a new one; returns when it is done."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(user, info, password.encode())
    admin.alter_user_scram_credentials([change])[user].result()


def bindings(
    user: str, allowed: Iterable[Allowed], pattern: ResourcePatternType = ResourcePatternType.LITERAL
) -> list[AclBinding]:
    return [
        AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for kind, name, operation in allowed
    ]


def add_acls(admin: AdminClient, wanted: list[AclBinding]) -> None:
    for created in admin.create_acls(wanted).values():
        created.result()


def let_in(bootstrap: str, access: Access, allowed: Iterable[Allowed] = EVERYTHING) -> None:
    """Makes a user that may do something; returns when all of the brokers know it."""
    admin = admin_client(bootstrap)
    set_password(admin, access.user, access.password)
    add_acls(admin, bindings(access.user, allowed))


def wait_until_let_in(accesses: Iterable[Access], addresses: Iterable[tuple[str, int]]) -> None:
    """Waits until every broker lets all of them in."""

    def can(access: Access, address: tuple[str, int]) -> bool:
        try:
            with connect(access, address):
                return True
        except (OSError, EOFError):
            return False

    for address in addresses:
        for access in accesses:
            until(lambda a=access, b=address: can(a, b), f"{access.user} can log in to {address}")
