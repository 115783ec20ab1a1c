"""Envelopes (KIP-590): requests that a broker forwards to the controller on behalf of its client.

The forwarding broker puts the request, the client's principal and the client's address into an envelope. The controller
accepts envelopes only from senders with ClusterAction, authorizes the request with the client's rights, and returns the
response in an envelope. Without an authorizer and quotas, the client does not matter, so brokers forward the bare
request.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from inspect import isawaitable
from ipaddress import ip_address
from typing import Any

from parley.broker.controller.controller import Controller
from parley.broker.network.dispatch import error_response
from parley.broker.network.peers import says_not_controller
from parley.broker.network.request_context import ConnectedClient, Disconnect, Handler, RequestContext
from parley.broker.security.acls.hosts import parse_address
from parley.broker.security.principal import Principal
from parley.broker.security.session import ClientSession
from parley.protocol.codec import decode_from, encode_stored, request_frame, response_frame
from parley.protocol.connection import parse_request_header
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from parley.protocol.messages import APIS
from parley.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from parley.protocol.messages.stored import DefaultPrincipalData
from parley.protocol.schema import Request, Response

FORWARDED_LISTENER = "(forwarded)"
"""The listener of forwarded requests in the audit log. The client's listener on the forwarding broker is unknown."""

_VERSION = struct.Struct(">h")
_SIZE_BYTES = 4
_CORRELATION_BYTES = 4
_PRINCIPAL_VERSION = 0
_NO_ADDRESS = bytes(4)
"""The address in the envelope of a client that has no IP address, such as a client of a simulated network."""


def wrap(context: RequestContext, request: Request) -> EnvelopeRequest:
    """Return an envelope with a client's request, and the principal and address of the client."""
    session = context.session
    frame = b"".join(
        bytes(part) for part in request_frame(request, context.api_version, context.correlation_id, context.client_id)
    )
    principal = DefaultPrincipalData(
        type=session.principal.kind,
        name=session.principal.name,
        token_authenticated=session.authenticated_by_token,
    )
    address = parse_address(session.host)
    return EnvelopeRequest(
        request_data=frame[_SIZE_BYTES:],
        request_principal=encode_stored(principal, _PRINCIPAL_VERSION),
        client_host_address=_NO_ADDRESS if address is None else address.packed,
    )


class EnvelopeRefused(KafkaError):
    """Raised if the controller did not carry out the request in an envelope.

    The client gets UNKNOWN_SERVER_ERROR, as in Kafka, because the fault is the cluster's and not the client's.
    """

    def __init__(self, code: ErrorCode) -> None:
        reason = f"The controller returned {code.name} for the request that this broker forwarded."
        if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            reason += " The brokers' principal needs ClusterAction on the cluster."
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, reason)


def unwrap(context: RequestContext, envelope: EnvelopeResponse) -> Response:
    """Return the response in an envelope.

    Raises KafkaError (NOT_CONTROLLER), or EnvelopeRefused if the controller did not carry out the request for another
    reason.
    """
    if envelope.error_code == ErrorCode.NOT_CONTROLLER:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)
    if envelope.error_code or envelope.response_data is None:
        raise EnvelopeRefused(ErrorCode(envelope.error_code))
    response = APIS[context.api_key].response
    has_tags = response.header_version(context.api_version) >= 1
    decoded, _ = decode_from(
        response, context.api_version, bytes(envelope.response_data), _CORRELATION_BYTES + has_tags
    )
    return decoded


class EnvelopesApi:
    """Handler of Envelope, on the controller."""

    def __init__(self, controller: Controller, handlers: Mapping[int, Handler]) -> None:
        """``handlers`` handle the requests that may be in an envelope. They check the client's rights."""
        self._controller = controller
        self._handlers = handlers

    def routes(self) -> dict[int, Handler]:
        return {EnvelopeRequest.API_KEY: self.open}

    async def open(self, context: RequestContext, envelope: EnvelopeRequest) -> EnvelopeResponse:
        """Carry out the request in an envelope. Returns its response in an envelope.

        The envelope's own error code says why a request was not carried out, for example NOT_CONTROLLER.
        """
        if not self._controller.is_active:
            return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        try:
            inner, request = _opened(context, envelope)
        except KafkaError as error:
            return EnvelopeResponse(error_code=error.code)
        handler = self._handlers.get(inner.api_key)
        if handler is None:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        try:
            response = handler(inner, request)
            while isawaitable(response):
                response = await response
            if says_not_controller(response):  # the controller's term has ended
                return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
            return _sealed(inner, response)
        except KafkaError as error:
            if error.code is ErrorCode.NOT_CONTROLLER:
                return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
            return _failed(inner, error)


def _sealed(inner: RequestContext, response: Response) -> EnvelopeResponse:
    parts = response_frame(response, inner.api_version, inner.correlation_id)
    return EnvelopeResponse(response_data=b"".join(bytes(part) for part in parts)[_SIZE_BYTES:])


def _failed(inner: RequestContext, error: KafkaError) -> EnvelopeResponse:
    """Return the error in the client's response, or as the envelope's error if the response cannot contain it.

    Never raises Disconnect, which would close the connection between the brokers, and fail the requests of other
    clients on it.
    """
    try:
        return _sealed(inner, error_response(APIS[inner.api_key].response, error.code, error.message))
    except (Disconnect, ValueError):
        return EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)


def _opened(context: RequestContext, envelope: EnvelopeRequest) -> tuple[RequestContext, Any]:
    """Return the request in an envelope, with the context of the client that sent it.

    Raises KafkaError: INVALID_REQUEST, UNSUPPORTED_VERSION, PRINCIPAL_DESERIALIZATION_FAILURE.
    """
    data = memoryview(bytes(envelope.request_data))
    try:
        header = parse_request_header(data)
        api = APIS.get(header.api_key)
        if api is None or header.api_key == EnvelopeRequest.API_KEY:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if not api.request.VERSIONS.min <= header.api_version <= api.request.VERSIONS.max:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        request, _ = decode_from(api.request, header.api_version, data, header.body_offset)
    except MalformedMessage as malformed:
        raise KafkaError(ErrorCode.INVALID_REQUEST) from malformed
    client = ConnectedClient(_session(context, envelope), 0)
    inner = RequestContext(
        header.api_key,
        header.api_version,
        header.correlation_id,
        header.client_id,
        client,
        context.received_at,
        len(data),
    )
    return inner, request


def _session(context: RequestContext, envelope: EnvelopeRequest) -> ClientSession:
    try:
        data = bytes(envelope.request_principal or b"")
        (version,) = _VERSION.unpack_from(data)
        if version != _PRINCIPAL_VERSION:
            raise ValueError(f"unknown principal version {version}")
        principal, _ = decode_from(DefaultPrincipalData, version, data, _VERSION.size)
        host = str(ip_address(bytes(envelope.client_host_address)))
    except (struct.error, ValueError, MalformedMessage) as error:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE) from error
    return ClientSession(
        Principal(principal.type, principal.name),
        host,
        FORWARDED_LISTENER,
        authenticated_by_token=principal.token_authenticated,
    )
