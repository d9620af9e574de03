"""How listeners are protected: protocols, certificates, ways to log in; see `broker.py` for the other settings.

The words are Kafka's: a listener has a *security protocol*, PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from penstock.config.secret import Secret, read_secret
from penstock.config.setting import meaning
from penstock.errors import ConfigError
from penstock.security.principal import Principal
from penstock.security.principal_mapping import DEFAULT_RULES, MappingRules, parse_mapping_rules

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_REVEALING = (PLAIN, OAUTHBEARER)
"""An eavesdropper on a login with one of these can log in too."""


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


class ClientCertificates(tuple[tuple[str, str], ...]):
    """Whether clients show a certificate, by listener; without a name for all that are not named."""

    __slots__ = ()

    def __str__(self) -> str:
        return ",".join(f"{name}:{word}" if name else word for name, word in self)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self if name]

    def of(self, listener: str) -> str:
        """none, requested or required."""
        said = dict(self)
        return said.get(listener, said.get("", "none"))


NO_CLIENT_CERTIFICATES = ClientCertificates((("", "none"),))
_CERTIFICATE_WORDS = ("none", "requested", "required")


def parse_client_certificates(text: str) -> ClientCertificates:
    """Reads `security.client_certificates`; raises ValueError with the allowed spelling."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, colon, word = (each.strip() for each in part.rpartition(":"))
        name, word = name.upper(), word.lower()
        if (colon and not name) or name in found or word not in _CERTIFICATE_WORDS:
            raise ValueError(
                f"{', '.join(_CERTIFICATE_WORDS)}, or LISTENER:WORD,LISTENER:WORD with one of these words for each"
            )
        found[name] = word
    return ClientCertificates(found.items())


class PrincipalNames(tuple[Principal, ...]):
    """Principals, written with semicolons: names of certificates have commas."""

    __slots__ = ()

    def __str__(self) -> str:
        return ";".join(map(str, self))


NO_PRINCIPALS = PrincipalNames()


def parse_principals(text: str) -> PrincipalNames:
    """Reads a list of principals; raises ValueError with the allowed spelling."""
    return PrincipalNames(Principal.parse(part.strip()) for part in text.split(";") if part.strip())


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


def parse_key_set_url(text: str) -> str:
    """Reads `security.oauth_jwks_url`: an attacker who changes the answer on its way could sign tokens."""
    parts = urlsplit(text)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    if not is_safe or not parts.hostname:
        raise ValueError("https://HOST/PATH, or http on this machine")
    return text


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
    client_certificates: ClientCertificates = field(
        default=NO_CLIENT_CERTIFICATES,
        metadata=meaning(
            "Whether clients show a certificate on listeners with TLS: none, requested or required; or for each "
            "listener, as LISTENER:WORD,LISTENER:WORD. A word without a listener is for those that are not named.",
            make=parse_client_certificates,
        ),
    )
    min_tls_version: str = field(
        default="1.2", metadata=meaning("The oldest version of TLS that is spoken.", choices=("1.2", "1.3"))
    )

    http_tls: bool = field(
        default=False,
        metadata=meaning("Whether health and metrics are served with TLS, with the certificate of this broker."),
    )
    http_credentials_file: Path | None = field(
        default=None,
        metadata=meaning(
            "File with the credentials that may read health and metrics, a USER:PASSWORD or bearer TOKEN in a line; "
            "read at start and on SIGHUP. Empty: all clients may.",
            make=Path,
        ),
    )
    authorizer: str = field(
        default="none",
        metadata=meaning(
            "The authorizer. none: every client may do everything; acls: clients may do what the access control lists "
            "of the cluster allow.",
            choices=("none", "acls"),
        ),
    )
    super_users: PrincipalNames = field(
        default=NO_PRINCIPALS,
        metadata=meaning(
            "Principals that may do everything, whatever ACLs say, such as User:admin;User:CN=ops,O=Example.",
            make=parse_principals,
        ),
    )
    allow_everyone_if_no_acl_found: bool = field(
        default=False,
        metadata=meaning("Whether everyone may do everything with a resource that no ACL is about."),
    )
    sasl_mechanisms: tuple[str, ...] = field(
        default=(SCRAM_SHA_256, SCRAM_SHA_512),
        metadata=meaning("Ways to log in on SASL listeners.", choices=MECHANISMS),
    )
    cleartext_secrets: bool = field(
        default=False,
        metadata=meaning(
            "Whether PLAIN and OAUTHBEARER are taken on SASL_PLAINTEXT listeners too, where any host on the way can "
            "read passwords and tokens."
        ),
    )
    max_session_ms: int = field(
        default=0,
        metadata=meaning(
            "Milliseconds after which a client has to log in again; 0 for never. A token's own expiry holds too.", low=0
        ),
    )
    users_file: Path | None = field(
        default=None,
        metadata=meaning(
            "File with users of this broker beside those of the cluster, one USER:PASSWORD a line; read at start and "
            "on SIGHUP.",
            make=Path,
        ),
    )
    admin_user: str | None = field(
        default=None,
        metadata=meaning(
            "A super user. A cluster that has no users yet gets this one, with the password of "
            "security.admin_password_file or security.admin_password."
        ),
    )
    admin_password_file: Path | None = field(
        default=None, metadata=meaning("File with the first password of security.admin_user: one line.", make=Path)
    )
    admin_password: Secret | None = field(
        default=None,
        metadata=meaning(
            "The first password of security.admin_user; meant for the environment variable PENSTOCK_ADMIN_PASSWORD.",
            make=Secret,
            is_secret=True,
        ),
    )
    inter_broker_user: str | None = field(
        default=None,
        metadata=meaning(
            "The user as which brokers log in to each other, if their listener has SASL; the same on all brokers. A "
            "client that logs in there as this user counts as a broker."
        ),
    )
    inter_broker_password_file: Path | None = field(
        default=None, metadata=meaning("File with the password of security.inter_broker_user: one line.", make=Path)
    )
    inter_broker_mechanism: str = field(
        default=SCRAM_SHA_512,
        metadata=meaning("How brokers log in to each other.", choices=(SCRAM_SHA_256, SCRAM_SHA_512, PLAIN)),
    )
    broker_principals: PrincipalNames = field(
        default=NO_PRINCIPALS,
        metadata=meaning(
            "Principals that count as brokers on the inter-broker listener, such as User:CN=broker1;User:CN=broker2. "
            "Empty: everyone who can connect to it, or with SASL security.inter_broker_user alone.",
            make=parse_principals,
        ),
    )
    principal_mapping_rules: MappingRules = field(
        default=DEFAULT_RULES,
        metadata=meaning(
            "How the name of a client's certificate becomes a user: RULE:PATTERN/REPLACEMENT/[L or U] or DEFAULT, "
            "separated by commas; the first that matches counts.",
            make=parse_mapping_rules,
        ),
    )
    oauth_jwks_file: Path | None = field(
        default=None, metadata=meaning("File with the public keys that sign tokens, as a JSON Web Key Set.", make=Path)
    )
    oauth_jwks_url: str | None = field(
        default=None,
        metadata=meaning(
            "Address of the public keys that sign tokens: https, or http on this machine.", make=parse_key_set_url
        ),
    )
    oauth_jwks_refresh_ms: int = field(
        default=3_600_000, metadata=meaning("Milliseconds after which the public keys are read again.", low=1000)
    )
    oauth_issuer: str | None = field(default=None, metadata=meaning("The issuer (iss) that tokens must have."))
    oauth_audience: str | None = field(default=None, metadata=meaning("The audience (aud) that tokens must have."))
    oauth_principal_claim: str = field(default="sub", metadata=meaning("The claim of a token that names the user."))
    oauth_clock_skew_ms: int = field(
        default=30_000,
        metadata=meaning("Milliseconds by which the clocks of brokers and issuer may differ.", low=0, high=600_000),
    )
    failed_login_delay_ms: int = field(
        default=100,
        metadata=meaning(
            "Milliseconds after which a failed login is answered; doubled with each further one from the same address.",
            low=0,
            high=60_000,
        ),
    )
    failed_login_max_delay_ms: int = field(
        default=5_000,
        metadata=meaning("Longest time, in milliseconds, after which a failed login is answered.", low=0, high=60_000),
    )

    @property
    def has_authorizer(self) -> bool:
        return self.authorizer == "acls"

    def mechanisms_of(self, protocol: SecurityProtocol) -> tuple[str, ...]:
        """The ways to log in on a listener of this protocol."""
        if not protocol.has_sasl:
            return ()
        if protocol.has_tls or self.cleartext_secrets:
            return self.sasl_mechanisms
        return tuple(name for name in self.sasl_mechanisms if name not in _REVEALING)

    def inter_broker_password(self) -> Secret:
        """Reads the file; ConfigError if that cannot be done."""
        assert self.inter_broker_password_file is not None
        return read_secret("security.inter_broker_password_file", self.inter_broker_password_file)

    def first_admin_password(self) -> Secret | None:
        """Reads the file, if that is where it is; ConfigError if that cannot be done."""
        if self.admin_password_file is not None:
            return read_secret("security.admin_password_file", self.admin_password_file)
        return self.admin_password

    def counts_as_broker(self, principal: Principal) -> bool:
        """Whether a caller of the inter-broker listener that has proved to be this principal is a broker."""
        if self.broker_principals:
            return principal in self.broker_principals
        return self.inter_broker_user is not None and principal == Principal.user(self.inter_broker_user)

    def check(self, listeners: tuple[str, ...]) -> None:
        """Raises ConfigError if the settings contradict each other, or those of the listeners."""
        for name in self.protocols.names:
            if name not in listeners:
                raise ConfigError(
                    f"security.protocols = '{self.protocols}': broker.listen has no listener {name}, only "
                    f"{', '.join(listeners)}"
                )
        for name in self.client_certificates.names:
            if name not in listeners or not self.protocols.of(name).has_tls:
                encrypted = [each for each in listeners if self.protocols.of(each).has_tls]
                raise ConfigError(
                    f"security.client_certificates = '{self.client_certificates}': there is no listener {name} with "
                    f"TLS, only {', '.join(encrypted) or 'listeners without it'}"
                )
        if self.http_tls and (self.certificate_file is None or self.key_file is None):
            missing = "certificate_file" if self.certificate_file is None else "key_file"
            raise ConfigError(f"security.http_tls is on: set security.{missing}")
        with_tls = [name for name in listeners if self.protocols.of(name).has_tls]
        if with_tls and (self.certificate_file is None or self.key_file is None):
            missing = "certificate_file" if self.certificate_file is None else "key_file"
            raise ConfigError(f"listener {with_tls[0]} uses TLS: set security.{missing}")
        for name in listeners:
            protocol = self.protocols.of(name)
            if protocol.has_sasl and not self.mechanisms_of(protocol):
                raise ConfigError(
                    f"listener {name} has no TLS, and security.sasl_mechanisms = '{','.join(self.sasl_mechanisms)}' "
                    "has none that can be used without it: add SCRAM-SHA-512, or set security.cleartext_secrets"
                )
        if any(OAUTHBEARER in self.mechanisms_of(self.protocols.of(name)) for name in listeners):
            self._check_oauth()
        if self.admin_user is not None and self.admin_password is not None and self.admin_password_file is not None:
            raise ConfigError(
                "security.admin_password and security.admin_password_file are both set: allowed is one of them"
            )

    def _check_oauth(self) -> None:
        if (self.oauth_jwks_file is None) == (self.oauth_jwks_url is None):
            raise ConfigError(
                "security.sasl_mechanisms has OAUTHBEARER: set security.oauth_jwks_file or security.oauth_jwks_url"
            )
        for key in ("oauth_issuer", "oauth_audience"):
            if getattr(self, key) is None:
                raise ConfigError(
                    f"security.sasl_mechanisms has OAUTHBEARER: set security.{key}, or tokens for others would be taken"
                )

    def check_inter_broker(self, listener: str) -> None:
        """Raises ConfigError if brokers could not log in to each other through this listener."""
        protocol = self.protocols.of(listener)
        if not protocol.has_sasl:
            return
        for key in ("inter_broker_user", "inter_broker_password_file"):
            if getattr(self, key) is None:
                raise ConfigError(f"the inter-broker listener {listener} has SASL: set security.{key}")
        if self.inter_broker_mechanism not in self.mechanisms_of(protocol):
            raise ConfigError(
                f"security.inter_broker_mechanism = '{self.inter_broker_mechanism}': the inter-broker listener "
                f"{listener} takes {', '.join(self.mechanisms_of(protocol))}"
            )
