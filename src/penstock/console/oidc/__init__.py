"""Signing in through a provider of identities (OpenID Connect): authorization code flow with PKCE."""
