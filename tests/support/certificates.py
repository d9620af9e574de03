"""Certificates for tests: an authority of our own, and what it signs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates, and writes all of them into a folder as PEM files."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / "ca.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def sign(
        self, name: str, *, host: str = "127.0.0.1", file: str | None = None, password: str | None = None
    ) -> tuple[Path, Path]:
        """A certificate for a name and a host, and its key: the files of both. An existing file is replaced."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Penstock"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
        )
        alternatives = x509.SubjectAlternativeName([x509.IPAddress(ip_address(host)), x509.DNSName("localhost")])
        certificate = (
            _builder(subject, self._name, key.public_key())
            .add_extension(alternatives, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        files = self._folder / f"{file or name}.pem", self._folder / f"{file or name}.key"
        contents = (
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption),
        )
        for path, content in zip(files, contents, strict=True):
            path.write_bytes(content)
        return files


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
    )


def tls_settings(authority: Authority, name: str = "broker") -> dict[str, object]:
    """The settings of a broker that has a certificate of an authority; no listener uses it yet."""
    certificate, key = authority.sign(name)
    return {
        "security.certificate_file": certificate,
        "security.key_file": key,
        "security.ca_file": authority.file,
    }
