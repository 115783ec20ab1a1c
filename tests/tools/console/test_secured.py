"""Logins with SCRAM over TLS, to the console of a secured Parley cluster, and to that of Apache Kafka."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from parley import Broker
from tests.support.kafka import Kafka4
from tests.tools.console import few_rights


@pytest.mark.slow
async def test_a_user_with_few_rights_sees_only_permitted_data(tmp_path: Path) -> None:
    secured = few_rights.SecuredListener(tmp_path)
    settings = secured.settings | {
        "listeners": "PLAINTEXT://127.0.0.1:0,SECURE://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "offsets.topic.num.partitions": "1",
    }
    store = f"local://{tmp_path / 'coordination'}"
    async with (
        Broker(settings, broker_id=1, coordination_url=store) as first,
        Broker(settings, broker_id=2, coordination_url=store) as second,
    ):
        await asyncio.to_thread(few_rights.populate, first.bootstrap_servers)
        endpoints = second.server.endpoints
        (address,) = (f"{one.host}:{one.port}" for one in endpoints if one.listener == "SECURE")
        await few_rights.check(address, secured.properties)


@pytest.mark.soak
@pytest.mark.system
@pytest.mark.timeout(300)
async def test_the_same_at_apache_kafka(tmp_path: Path) -> None:
    secured = few_rights.SecuredListener(tmp_path)
    kafka = Kafka4(tmp_path, secured.settings, {"SECURE": "SASL_SSL"})
    try:
        await asyncio.to_thread(few_rights.populate, kafka.bootstrap_servers)
        await few_rights.check(kafka.listeners["SECURE"], secured.properties)
    finally:
        kafka.close()
