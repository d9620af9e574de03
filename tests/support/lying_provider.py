"""A provider of identities that lies: it describes itself and signs tokens as a test wants it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

KEY = rsa.generate_private_key(65537, 2048)
OTHER_KEY = rsa.generate_private_key(65537, 2048)


class Liar:
    """Serves what `told` says, unless `answers` has something for the path."""

    def __init__(self) -> None:
        liar = self
        self.claims: dict[str, Any] = {}
        self.make: Callable[[dict[str, Any]], str] = lambda claims: jwt.encode(claims, KEY, "RS256", {"kid": "one"})
        self.description: dict[str, Any] = {}
        self.userinfo: dict[str, Any] = {}
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                self._answer({name: values[0] for name, values in form.items()})

            def _answer(self, form: dict[str, str]) -> None:
                path = urlsplit(self.path).path
                liar.asked.append(path)
                status, headers, body = liar.answers.get(path) or (200, {}, json.dumps(liar.told(path)).encode())
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *parts: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def told(self, path: str) -> dict[str, Any]:
        if path == "/.well-known/openid-configuration":
            described = {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "userinfo_endpoint": f"{self.issuer}/userinfo",
            }
            return {**described, **self.description}
        if path == "/keys":
            return {"keys": [{**RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "one", "use": "sig"}]}
        if path == "/userinfo":
            return self.userinfo
        return {"access_token": "x", "token_type": "Bearer", "id_token": self.make(self.claims)}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def signed_with_public_key(claims: dict[str, Any]) -> str:
    """HS256 with what everyone may know: PyJWT itself refuses to make such a token from PEM."""
    secret = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def part(content: bytes) -> bytes:
        return base64.urlsafe_b64encode(content).rstrip(b"=")

    body = part(b'{"alg":"HS256","kid":"one"}') + b"." + part(json.dumps(claims).encode())
    return (body + b"." + part(hmac.new(secret, body, hashlib.sha256).digest())).decode()
