"""The headers before every request and response."""

from __future__ import annotations

from parley.protocol.schema import Header, field, i16, i32


class RequestHeader(Header, versions="0-2", flexible="2+"):
    """The header of a request.

    The client id has an int16 length even in version 2, so that a broker can read the header of an ApiVersions request
    with a newer version than it knows.

    Versions:
        1: client_id; version 0 was only for ControlledShutdown version 0 (0.8.2).
        2: tagged fields, before requests in flexible encoding (KIP-482).
    """

    request_api_key: i16
    request_api_version: i16
    correlation_id: i32
    client_id: str | None = field("1+", flexible="none", default=None)


class ResponseHeader(Header, versions="0-1", flexible="1+"):
    """The header of a response.

    Versions:
        1: tagged fields, before responses in flexible encoding, except ApiVersions (KIP-482).
    """

    correlation_id: i32
