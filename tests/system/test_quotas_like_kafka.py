"""Apache Kafka and Parley accept and reject the same client quotas, and select the same quotas for a filter."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from parley import Broker
from parley.broker.quotas import filters
from parley.broker.quotas.filters import MatchType
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest
from tests.support.kafka import Kafka4
from tests.support.kafka_answers import compare_with_kafka

pytestmark = [pytest.mark.slow, pytest.mark.system]

ALTER, DESCRIBE = AlterClientQuotasRequest, DescribeClientQuotasRequest
Parts = list[tuple[str, str | None]]
Ops = list[tuple[str, float | None]]
Components = list[tuple[str, int, str | None]]
Outcomes = tuple[dict[str, str], dict[str, object]]

ALTERATIONS: list[tuple[Parts, Ops]] = [
    ([("user", "alice")], [("producer_byte_rate", 1024), ("consumer_byte_rate", 2048)]),
    ([("user", "alice"), ("client-id", "app")], [("request_percentage", 12.5)]),
    ([("client-id", "app"), ("user", None)], [("controller_mutation_rate", 0.5)]),
    ([("user", "alice"), ("client-id", None)], [("producer_byte_rate", 1)]),
    ([("user", None), ("client-id", None)], [("producer_byte_rate", 2)]),
    ([("user", None)], [("producer_byte_rate", 3)]),
    ([("client-id", "app")], [("producer_byte_rate", 4)]),
    ([("client-id", None)], [("producer_byte_rate", 2.0**63)]),
    ([("ip", "10.0.0.1")], [("connection_creation_rate", 5)]),
    ([("ip", None)], [("connection_creation_rate", 2.0**31 - 1)]),
    ([("user", "alice")], [("consumer_byte_rate", None), ("request_percentage", None), ("nonsense", None)]),
    ([("user", "nobody")], [("consumer_byte_rate", None)]),
    ([("user", "bob")], []),
    ([("user", "CN=carol,O=a b/c%")], [("consumer_byte_rate", 7)]),
    ([], [("producer_byte_rate", 1)]),
    ([("user", "")], [("producer_byte_rate", 1)]),
    ([("group", "g")], [("producer_byte_rate", 1)]),
    ([("user", "a"), ("ip", "10.0.0.1")], [("producer_byte_rate", 1)]),
    ([("ip", "10.0.0.1")], [("producer_byte_rate", 1)]),
    ([("ip", "localhost")], [("connection_creation_rate", 6)]),
    ([("ip", "localhost")], [("connection_creation_rate", None)]),
    ([("ip", "not an address")], [("connection_creation_rate", 1)]),
    ([("ip", "10.0.0.1")], [("connection_creation_rate", 1.5)]),
    ([("ip", "10.0.0.1")], [("connection_creation_rate", 2.0**31)]),
    ([("user", "a")], [("connection_creation_rate", 1)]),
    ([("user", "a")], [("nonsense", 1)]),
    ([("user", "a")], [("producer_byte_rate", 0)]),
    ([("user", "a")], [("request_percentage", -1)]),
    ([("user", "a")], [("producer_byte_rate", 1.5)]),
    ([("user", "a")], [("producer_byte_rate", 1.0000001)]),
    ([("user", "a")], [("consumer_byte_rate", 2.0**64)]),
    ([("user", "a")], [("producer_byte_rate", 1), ("producer_byte_rate", 2)]),
    ([("user", "the last")], [("producer_byte_rate", 1)]),
]

ONLY_KAFKA_TAKES = {f"{[('ip', 'localhost')]} {[('connection_creation_rate', rate)]}" for rate in (6, None)}
"""Alterations that Parley rejects because its brokers do not resolve host names (docs/quotas.md)."""

EXACT, DEFAULT, ANY = MatchType.EXACT, MatchType.DEFAULT, MatchType.SPECIFIED
FILTERS: list[Components] = [
    [],
    [("user", EXACT, "alice")],
    [("user", DEFAULT, None)],
    [("user", ANY, None)],
    [("client-id", EXACT, "app")],
    [("client-id", ANY, None)],
    [("user", ANY, None), ("client-id", ANY, None)],
    [("user", EXACT, "alice"), ("client-id", DEFAULT, None)],
    [("user", EXACT, "nobody")],
    [("ip", EXACT, "10.0.0.1")],
    [("ip", ANY, None)],
    [("ip", ANY, None), ("user", ANY, None)],
    [("user", ANY, None), ("user", DEFAULT, None)],
    [("", ANY, None)],
    [("group", ANY, None)],
    [("user", EXACT, None)],
    [("user", DEFAULT, "alice")],
    [("user", ANY, "alice")],
    [("user", 3, None)],
]


async def altered(client: Client, parts: Parts, ops: Ops) -> str:
    """Return the name of the error of an alteration."""
    entry = ALTER.EntryData(
        entity=[ALTER.EntityData(entity_type=kind, entity_name=name) for kind, name in parts],
        ops=[ALTER.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )
    (outcome,) = (await client.send(ALTER(entries=[entry]))).entries
    return ErrorCode(outcome.error_code).name


async def selected(client: Client, components: Components, *, strict: bool) -> object:
    """Return the selected quotas, or the name of the error."""
    wanted = [
        DESCRIBE.ComponentData(entity_type=kind, match_type=match, match=name) for kind, match, name in components
    ]
    try:
        response = await client.send(DESCRIBE(components=wanted, strict=strict))
    except KafkaError as error:
        return error.code.name
    if response.error_code:
        return ErrorCode(response.error_code).name
    return {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries or ()
    }


async def _until_described(client: Client, user: str) -> None:
    async with asyncio.timeout(60):
        while True:
            if await selected(client, [("user", EXACT, user)], strict=True):
                return
            await asyncio.sleep(0.02)  # Kafka's broker learns it from its controller


async def outcomes(address: str) -> Outcomes:
    """Return the outcome of each alteration, and then of each filter."""
    async with Client(address) as client:
        changed = {f"{parts} {ops}": await altered(client, parts, ops) for parts, ops in ALTERATIONS}
        await _until_described(client, "the last")
        described = {
            f"{components} {strict}": await selected(client, components, strict=strict)
            for components in FILTERS
            for strict in (False, True)
        }
    return changed, described


def test_quotas_are_kafkas(tmp_path: Path) -> None:
    def theirs() -> Outcomes:
        kafka = Kafka4(tmp_path)
        try:
            return asyncio.run(outcomes(kafka.bootstrap_servers))
        finally:
            kafka.close()

    def check(answers: Outcomes) -> None:
        changed, described = answers
        differing = {what: (their, ours[0][what]) for what, their in changed.items() if their != ours[0][what]}
        assert differing == dict.fromkeys(ONLY_KAFKA_TAKES, ("NONE", "INVALID_REQUEST"))
        assert not {what: (their, ours[1][what]) for what, their in described.items() if their != ours[1][what]}

    with Broker() as broker:
        ours = asyncio.run(outcomes(broker.bootstrap_servers))
    compare_with_kafka(theirs, check, script=[Path(__file__), Path(filters.__file__)])
