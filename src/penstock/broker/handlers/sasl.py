"""Logging in: SaslHandshake and SaslAuthenticate. `net/login.py` has the login of each connection."""

from __future__ import annotations

from penstock.broker.requests.context import RequestContext
from penstock.errors import Code
from penstock.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

_NO_LOGIN = "The listener of this connection does not ask clients to log in."


class SaslHandlers:
    """Hands requests to the login of their connection."""

    async def handshake(self, request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
        login = context.caller.login
        if login is None:
            return SaslHandshakeResponse(error_code=Code.ILLEGAL_SASL_STATE)
        return login.handshake(request.mechanism, context.version)

    async def authenticate(self, request: SaslAuthenticateRequest, context: RequestContext) -> SaslAuthenticateResponse:
        login = context.caller.login
        if login is None:
            return SaslAuthenticateResponse(error_code=Code.ILLEGAL_SASL_STATE, error_message=_NO_LOGIN)
        return await login.authenticate(bytes(request.auth_bytes))
