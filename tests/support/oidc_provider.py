"""A real provider of identities on loopback: Django with django-oauth-toolkit, which insists on PKCE.

Django is configured once in a process; all tests of a worker share one provider, each with users of its own.
"""

from __future__ import annotations

import html
import re
import threading
import uuid
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import urljoin
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

PASSWORD = "at the provider"
CLIENT_ID, CLIENT_SECRET = "penstock-console", "hush: a secret of the console"
_LOGIN = '<form method="post">{% csrf_token %}{{ form }}<button type="submit">Log in</button></form>'
_CSRF = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')
_HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)"')
_CLAIMS: dict[str, dict[str, Any]] = {}


class OidcProvider:
    """Starts with itself; `close` ends it."""

    def __init__(self, folder: Path, redirect_uris: list[str], post_logout_uris: list[str]) -> None:
        self._server = make_server("127.0.0.1", 0, _not_ready, server_class=_Server, handler_class=_Silent)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self.issuer = f"{self.address}/o"
        _configure(folder, self.issuer)
        from django.core.management import call_command
        from django.core.wsgi import get_wsgi_application
        from oauth2_provider.models import get_application_model

        call_command("migrate", verbosity=0)
        get_application_model().objects.create(
            name="console",
            client_id=CLIENT_ID,
            client_secret=CLIENT_SECRET,
            client_type="confidential",
            authorization_grant_type="authorization-code",
            algorithm="RS256",
            redirect_uris=" ".join(redirect_uris),
            post_logout_redirect_uris=" ".join(post_logout_uris),
            skip_authorization=True,
        )
        self._server.set_app(get_wsgi_application())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add_user(self, name: str | None = None, **claims: Any) -> str:
        """Somebody who can sign in there with PASSWORD, and what tokens say of them."""
        from django.contrib.auth.models import User

        found = name or f"user-{uuid.uuid4().hex[:8]}"
        User.objects.create_user(found, password=PASSWORD)
        self.set_claims(found, **claims)
        return found

    def set_claims(self, name: str, **claims: Any) -> None:
        _CLAIMS[name] = {"preferred_username": name, **claims}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class ProviderBrowser:
    """What a browser does at the provider: it follows the login form and stops where it is sent back."""

    def __init__(self, provider: OidcProvider) -> None:
        self._address = provider.address
        self._client = httpx.Client()

    def sign_in(self, authorization_address: str, name: str, password: str = PASSWORD) -> str:
        """The address of the console that the provider sends the browser to."""
        answer = self._client.get(authorization_address)
        while answer.is_redirect:
            target = urljoin(str(answer.url), answer.headers["location"])
            if not target.startswith(self._address):
                return target
            answer = self._client.get(target)
        token = _CSRF.search(answer.text)
        assert token is not None, answer.text
        form = {"csrfmiddlewaretoken": token[1], "username": name, "password": password}
        answer = self._client.post(answer.url, data=form)
        while answer.is_redirect:
            target = urljoin(str(answer.url), answer.headers["location"])
            if not target.startswith(self._address):
                return target
            answer = self._client.get(target)
        raise AssertionError(f"the provider did not send the browser back: {answer.status_code} {answer.text}")

    def get(self, address: str) -> httpx.Response:
        return self._client.get(address)

    def confirm(self, address: str) -> httpx.Response:
        """Says yes to what the page there asks."""
        asked = self.get(address)
        form = {name: html.unescape(value) for name, value in _HIDDEN.findall(asked.text)}
        return self._client.post(address, data={**form, "allow": "yes"})

    def close(self) -> None:
        self._client.close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *parts: Any) -> None:
        pass


def _not_ready(environ: Any, start_response: Any) -> list[bytes]:
    start_response("503 Not ready", [])
    return []


def _configure(folder: Path, issuer: str) -> None:
    import django
    from django.conf import settings

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    settings.configure(
        SECRET_KEY=uuid.uuid4().hex,
        ALLOWED_HOSTS=["127.0.0.1"],
        ROOT_URLCONF="support.oidc_provider_urls",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "provider.db"}},
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "oauth2_provider",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                    ],
                    "loaders": [
                        ("django.template.loaders.locmem.Loader", {"registration/login.html": _LOGIN}),
                        "django.template.loaders.app_directories.Loader",
                    ],
                },
            }
        ],
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        LOGIN_URL="/accounts/login/",
        LOGGING_CONFIG=None,
        USE_TZ=True,
        OAUTH2_PROVIDER={
            "OIDC_ENABLED": True,
            "OIDC_ISS_ENDPOINT": issuer,
            "OIDC_RSA_PRIVATE_KEY": key.decode(),
            "OIDC_RP_INITIATED_LOGOUT_ENABLED": True,
            "OIDC_RP_INITIATED_LOGOUT_ALWAYS_PROMPT": False,
            "OIDC_RP_INITIATED_LOGOUT_STRICT_REDIRECT_URIS": False,
            "OAUTH2_VALIDATOR_CLASS": "support.oidc_provider_urls.Claims",
            "PKCE_REQUIRED": True,
            "ALLOWED_REDIRECT_URI_SCHEMES": ["http"],
            "SCOPES": {"openid": "who you are", "profile": "your name", "email": "your address"},
        },
    )
    django.setup()


def claims_of(name: str) -> dict[str, Any]:
    return _CLAIMS.get(name, {})
