"""Changes to a broker's own security settings through the API are validated before they are stored, and then take
effect."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cryptography.x509 import DNSName, SubjectAlternativeName, load_der_x509_certificate

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest
from tests.support.certificates import Authority

BROKER, TOPIC = 4, 2
AUTHORITY = Authority()
KEY_STORE = "listener.name.ssl.ssl.keystore.location"


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Broker, Client]]:
    AUTHORITY.issue("CN=broker", "localhost").write_pem(folder / "first.pem")
    AUTHORITY.issue("CN=broker", "localhost", "other").write_pem(folder / "second.pem")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": str(folder / "first.pem"),
    }
    async with Broker(settings) as broker:
        client = Client([("127.0.0.1", broker.server.endpoints[0].port)])
        try:
            yield broker, client
        finally:
            await client.close()


def _change(broker: Broker, *entries: tuple[str, str]) -> IncrementalAlterConfigsRequest.AlterConfigsResource:
    configs = [
        IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=0, value=value)
        for name, value in entries
    ]
    name = str(broker.server.identity.broker_id)
    return IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER, resource_name=name, configs=configs
    )


async def alter(client: Client, *resources: Any) -> list[tuple[int, str]]:
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=False)
    return [(each.error_code, each.error_message or "") for each in (await client.send(request)).responses]


async def names(broker: Broker) -> set[str]:
    """Return the names in the certificate that a new client receives."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=AUTHORITY.pem)
    port = broker.server.endpoints[1].port
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    encoded = writer.get_extra_info("ssl_object").getpeercert(True)
    writer.close()
    found = load_der_x509_certificate(encoded).extensions.get_extension_for_class(SubjectAlternativeName)
    return set(found.value.get_values_for_type(DNSName))


async def test_a_key_store_is_replaced_over_the_api(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, client):
        assert await names(broker) == {"localhost"}
        assert await alter(client, _change(broker, (KEY_STORE, str(tmp_path / "second.pem")))) == [(0, "")]
        async with asyncio.timeout(30):
            while await names(broker) != {"localhost", "other"}:  # noqa: ASYNC110  each look is a new connection
                await asyncio.sleep(0.01)


async def test_a_key_store_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, client):
        ((code, message),) = await alter(client, _change(broker, (KEY_STORE, "/nowhere.pem")))
        assert code == ErrorCode.INVALID_REQUEST
        assert "/nowhere.pem cannot be read" in message
        assert KEY_STORE not in broker.server.parts.config().given


async def test_other_changes_of_the_same_request_are_made(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, client):
        harmless = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=TOPIC, resource_name="none", configs=[]
        )
        outcomes = await alter(client, harmless, _change(broker, (KEY_STORE, "/nowhere.pem")))
        assert [code for code, _ in outcomes] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST]


async def test_a_replacement_of_all_entries_is_tried_too(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, client):
        resource = AlterConfigsRequest.AlterConfigsResource(
            resource_type=BROKER,
            resource_name=str(broker.server.identity.broker_id),
            configs=[AlterConfigsRequest.AlterableConfig(name=KEY_STORE, value="/nowhere.pem")],
        )
        response = await client.send(AlterConfigsRequest(resources=[resource], validate_only=True))
        assert [each.error_code for each in response.responses] == [ErrorCode.INVALID_REQUEST]
