"""Connection limits that are set while a broker runs take effect, and cannot lock out all clients."""

from __future__ import annotations

from typing import Any

import pytest

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.configs import IncrementalAlterConfigsRequest


async def set_for_all(client: Client, key: str, value: str) -> Any:
    """Set a key for all brokers and return the result."""
    config = IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=0, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    answer = await client.send(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    return answer.responses[0]


@pytest.mark.parametrize(
    "key",
    [
        "max.connections",
        "max.connections.per.ip",
        "max.connection.creation.rate",
        "listener.name.plaintext.max.connections",
    ],
)
async def test_a_limit_that_admits_no_connection_is_rejected(key: str) -> None:
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        answer = await set_for_all(client, key, "0")
        assert answer.error_code == ErrorCode.INVALID_REQUEST, "as Kafka answers for brokers"
        assert "no client could connect" in answer.error_message
        async with Client(broker.bootstrap_servers) as another:
            assert (await set_for_all(another, "max.connections", "100")).error_code == ErrorCode.NONE


async def test_limits_are_taken_over_while_the_broker_runs() -> None:
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        for key in ("max.connections", "max.connection.creation.rate"):
            assert (await set_for_all(client, key, "77")).error_code == ErrorCode.NONE
        limits = broker.server.parts.connection_quotas.limits
        assert (limits.connections, limits.connection_rate) == (77, 77)
