"""Envelope: a client's request that a broker forwards to the controller, with the client's principal (KIP-590)."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, i16


class EnvelopeRequest(Request, key=58, versions="0", flexible="0+"):
    """Carry out a request on behalf of a client of the sender."""

    request_data: bytes  # the header and the body of the request
    request_principal: bytes | None  # two bytes with the version, and a DefaultPrincipalData
    client_host_address: bytes  # 4 or 16 bytes


class EnvelopeResponse(Response, key=58, versions="0", flexible="0+"):
    """The response to the request in the envelope, or the reason why it was not carried out."""

    response_data: bytes | None = None  # the header and the body of the response
    error_code: i16 = 0
