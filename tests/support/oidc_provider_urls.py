"""What Django loads once it is configured: the addresses of the provider, and what its tokens say."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.views import LoginView
from django.urls import include, path
from oauth2_provider.oauth2_validators import OAuth2Validator

from support.oidc_provider import claims_of

urlpatterns = [
    path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")),
    path("accounts/login/", LoginView.as_view()),
]


class Claims(OAuth2Validator):  # type: ignore[misc]
    """Tells every claim whatever scope was asked for."""

    oidc_claim_scope = None

    def get_additional_claims(self, request: Any) -> dict[str, Any]:
        return claims_of(request.user.username)
