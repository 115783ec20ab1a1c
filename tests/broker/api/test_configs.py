"""DescribeConfigs of a broker: its entries are made once for each state of its configuration."""

from __future__ import annotations

import pytest

from parley import Broker
from parley.broker.api import configs
from parley.broker.config import BrokerConfig
from parley.broker.config.describe import Entry, describe_broker
from parley.broker.config.sealed_passwords import UnreadablePasswords
from parley.protocol.client import Client
from parley.protocol.messages.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest


async def test_a_brokers_entries_are_made_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[BrokerConfig] = []

    def counted(config: BrokerConfig, unreadable: UnreadablePasswords) -> list[Entry]:
        made.append(config)
        return describe_broker(config, unreadable)

    monkeypatch.setattr(configs, "describe_broker", counted)
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        name = str(broker.server.identity.broker_id)
        asked = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=4, resource_name=name, configuration_keys=["log.segment.bytes"]
        )

        async def described() -> str | None:
            (result,) = (await client.send(DescribeConfigsRequest(resources=[asked] * 199))).results
            (entry,) = result.configs
            value: str | None = entry.value
            return value

        before = await described()
        assert await described() == before != "30000000"
        assert len(made) == 1
        alter = IncrementalAlterConfigsRequest
        change = alter.AlterableConfig(name="log.segment.bytes", config_operation=0, value="30000000")
        resource = alter.AlterConfigsResource(resource_type=4, resource_name=name, configs=[change])
        await client.send(alter(resources=[resource], validate_only=False))
        assert await described() == "30000000"
        assert len(made) == 2
