"""DescribeClientQuotas and AlterClientQuotas, through any broker of a cluster, and over restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from parley import Broker, Cluster
from parley.broker.api.client_quotas import ClientQuotasApi
from parley.broker.api.requested_names import SLICE
from parley.broker.metadata.image import MetadataImage
from parley.broker.network.dispatch import ON_LOOP_ELEMENTS_MAX
from parley.broker.quotas.entities import QuotaEntity
from parley.broker.quotas.filters import MatchType
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest
from tests.broker.api.bench import context

Quotas = dict[tuple[tuple[str, str | None], ...], dict[str, float]]
ALTER, DESCRIBE = AlterClientQuotasRequest, DescribeClientQuotasRequest


async def alter(
    address: str, parts: dict[str, str | None], quotas: dict[str, float | None], *, validate_only: bool = False
) -> tuple[int, str | None]:
    """Change one entity. Returns the error code and message."""
    entry = ALTER.EntryData(
        entity=[ALTER.EntityData(entity_type=kind, entity_name=name) for kind, name in parts.items()],
        ops=[ALTER.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()],
    )
    async with Client(address) as client:
        response = await client.send(ALTER(entries=[entry], validate_only=validate_only))
    (outcome,) = response.entries
    assert {each.entity_type: each.entity_name for each in outcome.entity} == parts
    return outcome.error_code, outcome.error_message


async def described(address: str, *components: tuple[str, int, str | None], strict: bool = False) -> Quotas:
    async with Client(address) as client:
        response = await client.send(
            DESCRIBE(
                components=[
                    DESCRIBE.ComponentData(entity_type=kind, match_type=match, match=name)
                    for kind, match, name in components
                ],
                strict=strict,
            )
        )
    assert response.error_code == 0
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries or ()
    }


async def test_quotas_are_described_as_they_were_set(tmp_path: Path) -> None:
    settings = {"coordination.url": f"local://{tmp_path}/store", "log.dirs": str(tmp_path / "data")}
    alice: Quotas = {(("user", "alice"),): {"producer_byte_rate": 1024.0}}
    default: Quotas = {(("user", None), ("client-id", "app")): {"request_percentage": 12.5}}
    with Broker(settings) as broker:
        at = broker.bootstrap_servers
        assert await alter(at, {"user": "alice"}, {"producer_byte_rate": 1024}) == (0, None)
        assert await alter(at, {"user": None, "client-id": "app"}, {"request_percentage": 12.5}) == (0, None)
        assert await alter(at, {"user": "bob"}, {"producer_byte_rate": 1}, validate_only=True) == (0, None)
        code, text = await alter(at, {"user": "bob"}, {"producer_byte_rate": 0})
        assert (code, text) == (ErrorCode.INVALID_REQUEST, "Quota producer_byte_rate must be greater than 0")
        assert await described(at) == alice | default
        assert await described(at, ("user", MatchType.DEFAULT, None)) == default
        assert await described(at, ("user", MatchType.SPECIFIED, None), strict=True) == alice
    with Broker(settings) as broker:
        at = broker.bootstrap_servers
        assert await described(at) == alice | default
        assert await alter(at, {"user": "alice"}, {"producer_byte_rate": None}) == (0, None)
        assert await described(at) == default


async def test_every_broker_changes_quotas_and_learns_of_changes() -> None:
    async with Cluster(brokers=2) as cluster:
        addresses = [broker.bootstrap_servers for broker in cluster.brokers.values()]
        for rate, address in enumerate(addresses, start=1):
            assert await alter(address, {"user": "alice"}, {"producer_byte_rate": rate}) == (0, None)
            for each in addresses:
                while await described(each) != {(("user", "alice"),): {"producer_byte_rate": float(rate)}}:
                    pass  # a broker that lags behind is not waited for


async def test_a_broker_looks_up_no_host_names() -> None:
    with Broker() as broker:
        at = broker.bootstrap_servers
        assert await alter(at, {"ip": "127.0.0.1"}, {"connection_creation_rate": 1e6}) == (0, None)
        assert await described(at, ("ip", MatchType.EXACT, "::ffff:127.0.0.1")) == await described(at)
        assert await described(at, ("ip", MatchType.EXACT, "localhost")) == {}
        for name in ("localhost", "not an address"):
            code, text = await alter(at, {"ip": name}, {"connection_creation_rate": 1})
            assert (code, text) == (
                ErrorCode.INVALID_REQUEST,
                f"{name} is not a valid IP. Brokers do not resolve host names: send the address of the host.",
            )


async def test_other_requests_get_their_turn_while_many_entities_are_described() -> None:
    stored = {
        QuotaEntity(user=f"{number}"): {"producer_byte_rate": 1.0}
        for number in range(max(2 * SLICE, ON_LOOP_ELEMENTS_MAX + 1))
    }
    metadata = SimpleNamespace(image=MetadataImage("c", client_quotas=stored))
    api = ClientQuotasApi(cast(Any, None), cast(Any, metadata), cast(Any, None))
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "another request")
    asked = context(1, api_key=DESCRIBE.API_KEY)
    response = await api.describe(asked, DESCRIBE(components=[], strict=False))
    assert response.entries is not None
    assert len(response.entries) == len(stored)
    assert turns == ["another request"]
    assert asked.has_many_elements, "a thread encodes the response"


async def test_an_impossible_filter_is_refused_as_a_whole() -> None:
    with Broker() as broker:
        component = DESCRIBE.ComponentData(entity_type="user", match_type=MatchType.EXACT, match=None)
        async with Client(broker.bootstrap_servers) as client:
            response = await client.send(DESCRIBE(components=[component], strict=False))
    assert (response.error_code, response.entries) == (ErrorCode.INVALID_REQUEST, [])
    assert response.error_message == "Request specified MATCH_TYPE_EXACT, but set match string to null."
