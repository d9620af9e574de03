"""How listeners are protected: protocols, certificates, ways to log in; see `broker.py` for the other settings.

The words are Kafka's: a listener has a *security protocol*, PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from penstock.config.setting import meaning
from penstock.errors import ConfigError


class SecurityProtocol(Enum):
    """What a connection through a listener has to go through before its first request."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class ListenerProtocols(tuple[tuple[str, SecurityProtocol], ...]):
    """The protocols of listeners, by name; one that is not named has the protocol that it is called after."""

    __slots__ = ()

    def __str__(self) -> str:
        return ",".join(f"{name}:{protocol.value}" for name, protocol in self)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self]

    def of(self, listener: str) -> SecurityProtocol:
        """The protocol of a listener."""
        called = {protocol.value: protocol for protocol in SecurityProtocol}
        return dict(self).get(listener) or called.get(listener, SecurityProtocol.PLAINTEXT)


NO_PROTOCOLS = ListenerProtocols()


def parse_protocols(text: str) -> ListenerProtocols:
    """Reads `security.protocols`; raises ValueError with the allowed spelling."""
    found: dict[str, SecurityProtocol] = {}
    known = {protocol.value: protocol for protocol in SecurityProtocol}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, spelled = (word.strip().upper() for word in part.partition(":"))
        if not name or name in found or spelled not in known:
            raise ValueError(f"LISTENER:PROTOCOL for each listener once, with the protocols {', '.join(known)}")
        found[name] = known[spelled]
    return ListenerProtocols(found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """[security]: encryption of listeners, and who may connect."""

    protocols: ListenerProtocols = field(
        default=NO_PROTOCOLS,
        metadata=meaning(
            "Security protocol of each listener, as LISTENER:PROTOCOL,LISTENER:PROTOCOL with PLAINTEXT, SSL, "
            "SASL_PLAINTEXT and SASL_SSL. A listener that is not named has the protocol that it is called after, or "
            "PLAINTEXT.",
            make=parse_protocols,
        ),
    )
    certificate_file: Path | None = field(
        default=None,
        metadata=meaning("PEM file with the certificate of this broker and those that signed it.", make=Path),
    )
    key_file: Path | None = field(
        default=None, metadata=meaning("PEM file with the private key of the certificate.", make=Path)
    )
    key_password_file: Path | None = field(
        default=None, metadata=meaning("File with the password of the private key: one line.", make=Path)
    )
    ca_file: Path | None = field(
        default=None,
        metadata=meaning(
            "PEM file with the certificates that sign those of clients and of the other brokers; empty for those that "
            "the system trusts.",
            make=Path,
        ),
    )
    client_certificates: str = field(
        default="none",
        metadata=meaning(
            "Whether clients show a certificate on SSL listeners: none, requested or required.",
            choices=("none", "requested", "required"),
        ),
    )
    min_tls_version: str = field(
        default="1.2", metadata=meaning("The oldest version of TLS that is spoken.", choices=("1.2", "1.3"))
    )

    def check(self, listeners: tuple[str, ...]) -> None:
        """Raises ConfigError if the settings contradict each other, or those of the listeners."""
        for name in self.protocols.names:
            if name not in listeners:
                raise ConfigError(
                    f"security.protocols = '{self.protocols}': broker.listen has no listener {name}, only "
                    f"{', '.join(listeners)}"
                )
        with_tls = [name for name in listeners if self.protocols.of(name).has_tls]
        if with_tls and (self.certificate_file is None or self.key_file is None):
            missing = "certificate_file" if self.certificate_file is None else "key_file"
            raise ConfigError(f"listener {with_tls[0]} uses TLS: set security.{missing}")
