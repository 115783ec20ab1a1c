"""SaslHandshake and SaslAuthenticate: authenticate the client."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, field, i16, i64


class SaslHandshakeRequest(Request, key=17, versions="0-1"):
    """Select the client's SASL mechanism (KIP-43).

    Versions:
        1: the SASL tokens that follow are wrapped in SaslAuthenticate requests instead of being sent raw (KIP-152).
    """

    mechanism: str  # PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI, OAUTHBEARER, ...


class SaslHandshakeResponse(Response, key=17, versions="0-1"):
    """The broker's mechanisms; UNSUPPORTED_SASL_MECHANISM if the selected one is not among them.

    Versions:
        1: same layout; tokens in SaslAuthenticate (KIP-152).
    """

    error_code: i16 = 0
    mechanisms: list[str]


class SaslAuthenticateRequest(Request, key=36, versions="0-2", flexible="2+"):
    """Send a token of the mechanism to the broker (KIP-152).

    Versions:
        1: the response limits the lifetime of the session (KIP-368).
        2: flexible encoding (KIP-482).
    """

    auth_bytes: bytes


class SaslAuthenticateResponse(Response, key=36, versions="0-2", flexible="2+"):
    """The next token of the mechanism for the client, or the reason why the broker rejects the client.

    Versions:
        1: session_lifetime_ms, after which the client must authenticate again (KIP-368).
        2: flexible encoding (KIP-482).
    """

    error_code: i16 = 0
    error_message: str | None = None
    auth_bytes: bytes
    session_lifetime_ms: i64 = field("1+", default=0, ignorable=True)  # 0: no limit
