"""``parley configs`` for users that log in with SCRAM: through a broker, and in the store before the first start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley import Broker
from parley.protocol.client import Client, NotAuthenticated
from parley.protocol.security.client_security import client_security
from tests.tools.conftest import Parley

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SECURED = {
    "listeners": "SECURE://127.0.0.1:0",
    "listener.security.protocol.map": "SECURE:SASL_PLAINTEXT",
    "inter.broker.listener.name": "SECURE",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    "listener.name.secure.scram-sha-256.sasl.jaas.config": f'{MODULE} username="broker" password="b";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:broker",
}


def properties(user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{MODULE} username="{user}" password="{password}";',
    }


async def connect(address: str, user: str, password: str) -> int:
    """Log in, and return the number of brokers that the cluster has."""
    async with Client(address, security=client_security(properties(user, password))) as client:
        return len((await client.metadata([])).brokers)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"local://{tmp_path}/store"


@pytest.fixture
def prepared(parley: Parley, store: str, tmp_path: Path) -> Iterator[Broker]:
    """Yield a broker on a store that contained the user before the first start."""
    words = ("--add-config", "SCRAM-SHA-256=[iterations=4096,password=b]", "--coordination-url", store)
    done = parley("configs", "--alter", "--entity-type", "users", "--entity-name", "broker", *words)
    assert done.code == 0, done.err
    assert done.out == "Completed updating config for user broker.\n"
    with Broker({**SECURED, "coordination.url": store, "log.dirs": str(tmp_path / "data")}) as broker:
        yield broker


def address_of(broker: Broker) -> str:
    (endpoint,) = broker.server.endpoints
    return f"{endpoint.host}:{endpoint.port}"


@pytest.mark.slow
def test_the_first_user_is_there_before_the_first_broker(
    parley: Parley, store: str, prepared: Broker, tmp_path: Path
) -> None:
    address = address_of(prepared)
    assert asyncio.run(connect(address, "broker", "b")) == 1
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties("broker", "b").items()))
    at = ("--bootstrap-server", address, "--command-config", str(config))
    for user, text in (("alice", "SCRAM-SHA-256=[iterations=8192,password=a]"), ("bob", "SCRAM-SHA-512=[password=c]")):
        done = parley("configs", *at, "--alter", "--user", user, "--add-config", text)
        assert done.code == 0, done.err
    assert asyncio.run(connect(address, "alice", "a")) == 1
    with pytest.raises(NotAuthenticated):
        asyncio.run(connect(address, "alice", "wrong"))
    listed = parley("configs", *at, "--describe", "--entity-type", "users").out
    assert listed.splitlines() == [
        "SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-256=iterations=8192",
        "SCRAM credential configs for user-principal 'bob' are SCRAM-SHA-512=iterations=4096",
        "SCRAM credential configs for user-principal 'broker' are SCRAM-SHA-256=iterations=4096",
    ]
    (bob,) = json.loads(parley("configs", *at, "--describe", "--user", "bob", "--json").out)
    assert bob["configs"][0]["value"] == "iterations=4096"
    assert parley("configs", *at, "--alter", "--user", "alice", "--delete-config", "SCRAM-SHA-256").code == 0
    with pytest.raises(NotAuthenticated):
        asyncio.run(connect(address, "alice", "a"))
    refused = parley("configs", "--alter", "--user", "eve", "--add-config", "SCRAM-SHA-256=[password=e]",
                     "--coordination-url", store)  # fmt: skip
    assert "brokers use this store" in refused.err
    dumped = json.loads(parley("coordination", "dump", store).out)["entries"]
    assert dumped["data/scram/bob"] == {"user": "<hidden>", "credentials": "<hidden>"}
    assert "<hidden>" in str(dumped["data/secrets/decoy"])


def test_users_of_a_store_without_brokers_are_shown_and_deleted(parley: Parley, store: str) -> None:
    at = ("--coordination-url", store)
    parley("configs", "--alter", "--user", "a/b =", "--add-config", "SCRAM-SHA-256=[password=p]", *at)
    shown = parley("configs", "--describe", "--entity-type", "users", *at).out
    assert "'a/b =' are SCRAM-SHA-256=iterations=4096" in shown
    assert parley("configs", "--alter", "--user", "a/b =", "--delete-config", "SCRAM-SHA-256", *at).code == 0
    missing = parley("configs", "--alter", "--user", "a/b =", "--delete-config", "SCRAM-SHA-256", *at)
    assert missing.code == 1
    assert "does not exist" in missing.err
    assert parley("configs", "--describe", "--user", "a/b =", *at).code == 1
