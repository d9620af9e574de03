"""Errors while a user signs in through a provider. Their texts contain no secrets."""

from __future__ import annotations

from penstock.errors import PenstockError


class ProviderError(PenstockError):
    """The provider does not answer, or not as OpenID Connect says; the user is not to blame."""


class IdentityError(PenstockError):
    """This login does not count: it did not begin here, has been used, or names no user whom the console lets in."""
