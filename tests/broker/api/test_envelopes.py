"""Requests in envelopes keep their client's principal, address and content."""

from __future__ import annotations

from typing import Any

import pytest

from parley.broker.api.envelopes import EnvelopeRefused, EnvelopesApi, unwrap, wrap
from parley.broker.network.request_context import ConnectedClient, RequestContext
from parley.broker.security.principal import Principal, user
from parley.broker.security.session import ClientSession
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from parley.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse

BROKER = RequestContext(58, 0, 1, "broker-2", ConnectedClient(ClientSession(user("broker"), "10.0.0.2", "IN"), 1), 0.0)
REQUEST = CreateTopicsRequest(
    topics=[
        CreateTopicsRequest.CreatableTopic(name="t", num_partitions=3, replication_factor=1, assignments=[], configs=[])
    ],
    timeout_ms=100,
)


class Controller:
    is_active = True


class Handled:
    """A handler that records its requests."""

    def __init__(self, *errors: ErrorCode) -> None:
        self.errors = errors
        self.got: list[tuple[RequestContext, Any]] = []

    def __call__(self, context: RequestContext, request: Any) -> CreateTopicsResponse:
        self.got.append((context, request))
        if self.errors and self.errors[0] is ErrorCode.INVALID_REQUEST:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        make = CreateTopicsResponse.CreatableTopicResult
        return CreateTopicsResponse(topics=[make(name="t", error_code=code) for code in self.errors])


def of(client: ClientSession, version: int) -> RequestContext:
    return RequestContext(CreateTopicsRequest.API_KEY, version, 77, "my-client", ConnectedClient(client, 5), 0.0)


def api(handled: Handled, controller: Any = Controller) -> EnvelopesApi:
    return EnvelopesApi(controller, {CreateTopicsRequest.API_KEY: handled})


@pytest.mark.parametrize("version", [2, 5, 7])
@pytest.mark.parametrize("host", ["10.1.2.3", "2001:db8::1"])
async def test_the_controller_sees_the_client(version: int, host: str) -> None:
    client = ClientSession(Principal("User", "CN=ä, OU=b"), host, "OUT", "PLAIN", authenticated_by_token=True)
    context = of(client, version)
    handled = Handled(ErrorCode.TOPIC_ALREADY_EXISTS)
    response = unwrap(context, await api(handled).open(BROKER, wrap(context, REQUEST)))
    assert isinstance(response, CreateTopicsResponse)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("t", ErrorCode.TOPIC_ALREADY_EXISTS)]
    ((inner, request),) = handled.got
    assert (inner.principal, inner.client_host, inner.session.authenticated_by_token) == (client.principal, host, True)
    assert (inner.api_version, inner.correlation_id, inner.client_id) == (version, 77, "my-client")
    assert (request.topics[0].name, request.topics[0].num_partitions) == ("t", 3)


async def test_a_controller_whose_term_is_over_says_so() -> None:
    class Deposed:
        is_active = False

    context = of(ClientSession(user("a"), "10.0.0.1", "OUT"), 7)
    for handled, controller in ((Handled(), Deposed), (Handled(ErrorCode.NOT_CONTROLLER), Controller)):
        answer = await api(handled, controller).open(BROKER, wrap(context, REQUEST))
        with pytest.raises(KafkaError) as refused:
            unwrap(context, answer)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_an_error_that_the_response_cannot_carry_ends_no_connection() -> None:
    context = of(ClientSession(user("a"), "10.0.0.1", "OUT"), 7)
    answer = await api(Handled(ErrorCode.INVALID_REQUEST)).open(BROKER, wrap(context, REQUEST))
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_envelopes_that_cannot_be_opened() -> None:
    context = of(ClientSession(user("a"), "10.0.0.1", "OUT"), 7)
    good, handled = wrap(context, REQUEST), Handled()
    other = api(handled)
    wrong = {
        ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE: [
            _with(good, request_principal=None),
            _with(good, request_principal=b"\0\7abc"),
            _with(good, client_host_address=b"123"),
        ],
        ErrorCode.INVALID_REQUEST: [
            _with(good, request_data=b""),
            _with(good, request_data=bytes(good.request_data)[:-9]),
            _with(good, request_data=b"\0\x3a\0\0" + bytes(good.request_data)[4:]),
            _with(good, request_data=b"\0\3\0\0" + bytes(good.request_data)[4:]),
        ],
        ErrorCode.UNSUPPORTED_VERSION: [_with(good, request_data=b"\0\x13\0\x63" + bytes(good.request_data)[4:])],
    }
    for code, envelopes in wrong.items():
        for envelope in envelopes:
            assert (await other.open(BROKER, envelope)).error_code == code
    assert handled.got == []


def _with(envelope: EnvelopeRequest, **fields: Any) -> EnvelopeRequest:
    values = {name: getattr(envelope, name) for name in ("request_data", "request_principal", "client_host_address")}
    return EnvelopeRequest(**{**values, **fields})


def test_a_controller_that_refuses_the_broker_is_an_error_of_the_cluster() -> None:
    context = of(ClientSession(user("a"), "10.0.0.1", "OUT"), 7)
    with pytest.raises(EnvelopeRefused, match=r"CLUSTER_AUTHORIZATION_FAILED.* needs ClusterAction") as refused:
        unwrap(context, EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
