"""What a connection to MySQL or MariaDB does before it is one."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from penstock.sql.dialects.mysql_rows import RowConnection
from support.certificates import Authority


def test_certificates_are_read_only_to_verify_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(self: ssl.SSLContext, purpose: object = None) -> None:
        raise AssertionError("the certificates of the machine are read")

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", refuse)
    unverified = RowConnection(user="u", defer_connect=True).ctx
    assert (unverified.verify_mode, unverified.check_hostname) == (ssl.CERT_NONE, False)
    authority = Authority(tmp_path / "ca")
    verified = RowConnection(user="u", ssl_ca=str(authority.file), ssl_verify_identity=True, defer_connect=True).ctx
    assert (verified.verify_mode, verified.check_hostname) == (ssl.CERT_REQUIRED, True)
