"""The permission to move the cluster to another store, if there is no authorizer."""

from __future__ import annotations

import pytest

from parley.broker.api.envelopes import FORWARDED_LISTENER
from parley.broker.api.store_move import FROM_ELSEWHERE, guard_store_moves
from parley.broker.network.request_context import ConnectedClient, RequestContext
from parley.broker.security.session import anonymous
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.coordination import STATUS, MigrateCoordinationRequest, MigrateCoordinationResponse


def ask(host: str, *, listener: str = "PLAINTEXT", authorizer: bool = False) -> tuple[int, str | None]:
    """Return the response's error, or "handled" if the request passed the check."""

    def handle(context: RequestContext, request: MigrateCoordinationRequest) -> MigrateCoordinationResponse:
        return MigrateCoordinationResponse(error_message="handled")

    key = MigrateCoordinationRequest.API_KEY
    context = RequestContext(key, 0, 1, "broker-1-forwarding", ConnectedClient(anonymous(host, listener), 5), 0.0)
    handler = guard_store_moves({key: handle}, lambda: authorizer)[key]
    response = handler(context, MigrateCoordinationRequest(action=STATUS))
    assert isinstance(response, MigrateCoordinationResponse)
    return response.error_code, response.error_message


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_a_client_on_the_same_machine_may(host: str) -> None:
    assert ask(host) == (0, "handled")


@pytest.mark.parametrize("host", ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1", "", "not-an-address"])
def test_a_client_at_another_address_is_refused_with_any_client_id(host: str) -> None:
    assert ask(host) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, FROM_ELSEWHERE)


def test_an_envelope_proves_no_address() -> None:
    assert ask("127.0.0.1", listener=FORWARDED_LISTENER) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, FROM_ELSEWHERE)


def test_an_authorizer_decides_instead() -> None:
    assert ask("10.1.2.3", authorizer=True) == (0, "handled")
