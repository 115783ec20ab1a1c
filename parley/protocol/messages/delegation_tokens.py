"""Delegation tokens: short-lived credentials that a client passes to its workers (KIP-48)."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i16, i32, i64


class CreateDelegationTokenRequest(Request, key=38, versions="0-3", flexible="2+"):
    """Create a token for the principal of this connection, or for another principal.

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
        3: owner_principal_type and owner_principal_name, to create a token for another principal (KIP-373).
    """

    class CreatableRenewers(Struct):
        """A principal that may renew the token."""

        principal_type: str
        principal_name: str

    owner_principal_type: str | None = field("3+", default=None)  # None: the principal of this connection
    owner_principal_name: str | None = field("3+", default=None)  # None: the principal of this connection
    renewers: list[CreatableRenewers]
    max_lifetime_ms: i64  # -1: the broker's configuration applies


class CreateDelegationTokenResponse(Response, key=38, versions="0-3", flexible="2+"):
    """The token; its hmac is the secret.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
        3: the requesting principal, in addition to the owner (KIP-373).
    """

    error_code: i16 = 0
    principal_type: str
    principal_name: str
    token_requester_principal_type: str = field("3+", default="")
    token_requester_principal_name: str = field("3+", default="")
    issue_timestamp_ms: i64  # milliseconds since 1970, like the next two
    expiry_timestamp_ms: i64
    max_timestamp_ms: i64  # the token cannot be renewed beyond this time
    token_id: str
    hmac: bytes
    throttle_time_ms: i32 = 0


class RenewDelegationTokenRequest(Request, key=39, versions="0-2", flexible="2+"):
    """Extend the lifetime of a token, at most to its maximum.

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
    """

    hmac: bytes
    renew_period_ms: i64  # -1: the broker's configuration applies


class RenewDelegationTokenResponse(Response, key=39, versions="0-2", flexible="2+"):
    """The new time of expiry.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
    """

    error_code: i16 = 0
    expiry_timestamp_ms: i64  # milliseconds since 1970
    throttle_time_ms: i32 = 0


class ExpireDelegationTokenRequest(Request, key=40, versions="0-2", flexible="2+"):
    """Make a token expire earlier, or delete it.

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
    """

    hmac: bytes
    expiry_time_period_ms: i64  # from now; negative: delete immediately


class ExpireDelegationTokenResponse(Response, key=40, versions="0-2", flexible="2+"):
    """The new time of expiry.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
    """

    error_code: i16 = 0
    expiry_timestamp_ms: i64  # milliseconds since 1970
    throttle_time_ms: i32 = 0


class DescribeDelegationTokenRequest(Request, key=41, versions="0-3", flexible="2+"):
    """Request the tokens of some or all owners.

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
        3: the response contains the principal that requested each token (KIP-373).
    """

    class DescribeDelegationTokenOwner(Struct):
        """An owner whose tokens are requested."""

        principal_type: str
        principal_name: str

    owners: list[DescribeDelegationTokenOwner] | None  # None: all that the sender may see


class DescribeDelegationTokenResponse(Response, key=41, versions="0-3", flexible="2+"):
    """The requested tokens.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
        3: the requesting principal, in addition to the owner (KIP-373).
    """

    class DescribedDelegationToken(Struct):
        """A token with its owner, its lifetime and its renewers."""

        principal_type: str
        principal_name: str
        token_requester_principal_type: str = field("3+", default="")
        token_requester_principal_name: str = field("3+", default="")
        issue_timestamp: i64  # milliseconds since 1970, like the next two
        expiry_timestamp: i64
        max_timestamp: i64  # the token cannot be renewed beyond this time
        token_id: str
        hmac: bytes
        renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer]

    class DescribedDelegationTokenRenewer(Struct):
        """A principal that may renew the token."""

        principal_type: str
        principal_name: str

    error_code: i16 = 0
    tokens: list[DescribedDelegationToken]
    throttle_time_ms: i32 = 0
