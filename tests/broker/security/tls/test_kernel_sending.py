"""A broker with ``ssl.ktls.enable``: the kernel encrypts if it can, and OpenSSL otherwise. Clients see no difference.

The kernel of the machine decides which of the two a run of this test shows.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from parley.broker.network.tls_channel import TlsChannel
from parley.broker.security.principal import Principal
from parley.broker.security.tls.kernel import kernel_suites
from parley.protocol.messages.fetch import FetchRequest
from tests.broker.security.secured_brokers import SecuredBrokers
from tests.broker.test_server import create, produce

MANY_BYTES = 100 << 20


async def test_clients_get_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encrypts: list[bool] = []
    agree = TlsChannel._agree

    def noted(channel: TlsChannel, principal: Principal) -> None:
        encrypts.append(channel.kernel_encrypts)
        agree(channel, principal)

    monkeypatch.setattr(TlsChannel, "_agree", noted)
    secured, random = SecuredBrokers(tmp_path), Random(1)
    settings = secured.settings(1) | {"ssl.ktls.enable": "true"}
    async with secured.running(settings) as (server,), secured.client(server) as client:
        await create(client, "t")
        for size in (1, 100, 16_000, 70_000, 900_000, 900_000, 1, 900_000):
            await produce(client, "t", [random.randbytes(size)])
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MANY_BYTES)
        topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
        request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=MANY_BYTES, topics=[topic])
        segment = tmp_path / "broker-1" / "t-0" / "00000000000000000000.log"
        for _ in range(3):
            answer = await client.send(request, version=11)
            assert bytes(answer.responses[0].partitions[0].records) == segment.read_bytes()
    assert set(encrypts) == {bool(kernel_suites())}
