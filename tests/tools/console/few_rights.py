"""A user with few rights, in the console of a secured cluster: what that user sees, and what the console refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from parley.tools.console.settings import ConsoleSettings
from tests.support.certificates import Authority
from tests.tools.console.conftest import Browser, browsing

MODULES = "org.apache.kafka.common.security"
SCRAM = "SCRAM-SHA-512"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PASSWORDS = {"root": "root's secret", "ann": "ann's secret"}


class SecuredListener:
    """The settings of a broker with a listener SECURE for users (SASL_SSL with SCRAM), and the files of its clients."""

    def __init__(self, folder: Path) -> None:
        authority = Authority()
        trust = authority.write(folder / "trust.pem")
        own = authority.issue("CN=broker", "127.0.0.1").write_pem(folder / "broker.pem")
        self.settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(own),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trust),
            "sasl.enabled.mechanisms": SCRAM,
            f"listener.name.secure.{SCRAM.lower()}.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS;User:root",
        }
        self.properties: Mapping[str, str] = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": SCRAM,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trust),
        }


def populate(bootstrap: str) -> None:
    """Create the users, two topics with a record each, two groups, and the few rights of ann."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, info, password.encode()) for user, password in PASSWORDS.items()
    ]
    topics = [NewTopic("mine", 1, 1), NewTopic("secret", 1, 1)]
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    acl = AclBinding(ResourceType.TOPIC, "mine", literal, "User:ann", "*", AclOperation.READ, allow)
    made: list[Mapping[Any, Any]] = [
        admin.alter_user_scram_credentials(users),
        admin.create_topics(topics),
        admin.create_acls([acl]),
    ]
    for answers in made:
        for answer in answers.values():
            answer.result(60)
    producer = Producer({"bootstrap.servers": bootstrap})
    for name in ("mine", "secret"):
        producer.produce(name, f"value of {name}", partition=0)
    assert producer.flush(60) == 0


async def log_in(browser: Browser, user: str, password: str) -> None:
    opened = await browser.change("POST", "login", {"user": user, "password": password})
    assert opened["user"] == user
    browser.token = opened["csrf"]


async def status(browser: Browser, path: str, body: object = None, method: str = "GET") -> int:
    """Return the status of a request, whose response must have no secret."""
    if method == "GET":
        answer = await browser.client.get(f"/api/{path}")
    else:
        answer = await browser.try_change(method, path, body)
    assert not any(password in answer.text for password in PASSWORDS.values())
    return answer.status_code


REFUSED = (
    ("GET", "topics/secret", None),
    ("GET", "topics/secret/messages", None),
    ("GET", "configs/topic/mine", None),
    ("GET", "configs/broker/1", None),
    ("GET", "users", None),
    ("GET", "acls", None),
    ("GET", "quotas", None),
    ("POST", "topics", {"name": "new", "partitions": 1, "replicas": 1}),
    ("POST", "topics/mine/messages", {"value": "x"}),
    ("POST", "topics/mine/partitions", {"count": 2}),
    ("POST", "topics/mine/delete-records", {"partition": 0, "offset": -1}),
    ("DELETE", "topics/mine", None),
    ("PATCH", "configs/topic/mine", {"set": {"retention.ms": "1"}}),
    ("POST", "users", {"user": "eve", "mechanism": "SCRAM-SHA-256", "password": "x"}),
    ("POST", "quotas", {"entity": [{"type": "user", "name": "ann"}], "quotas": {"producer_byte_rate": 1}}),
)
"""Requests that ann may not make."""


async def check(bootstrap: str, properties: Mapping[str, str]) -> None:
    """Log in as ann and as root, at the same console at the same time."""
    settings = ConsoleSettings(bootstrap, properties)
    async with browsing(settings) as ann:
        await ann.open()
        for user, password in (("ann", "wrong"), ("nobody", "x"), ("root", PASSWORDS["ann"]), ("ann", "")):
            assert await status(ann, "login", {"user": user, "password": password}, "POST") in (400, 401)
            assert await status(ann, "topics") == 401
        await log_in(ann, "ann", PASSWORDS["ann"])
        transport = ann.client._transport
        async with type(ann.client)(transport=transport, base_url=ann.client.base_url) as client:
            root = Browser(client)
            await root.open()
            await log_in(root, "root", PASSWORDS["root"])
            named, all_named = await asyncio.gather(ann.get("topics"), root.get("topics"))
            assert [one["name"] for one in named["items"]] == ["mine"]
            assert [one["name"] for one in all_named["items"]] == ["mine", "secret"]
            assert (await ann.get("overview"))["topics"] == 1
            records = (await ann.get("topics/mine/messages"))["records"]
            assert [one["value"]["text"] for one in records] == ["value of mine"]
            found = {f"{method} {path}": await status(ann, path, body, method) for method, path, body in REFUSED}
            assert {what: code for what, code in found.items() if code != 403} == {}, found
            for path in ("groups", "transactions", "features", "log-dirs", "work", "coordination", "acls/why"):
                assert await status(ann, path) < 500, path
            tail = await ann.client.get("/api/topics/secret/tail")
            assert "TOPIC_AUTHORIZATION_FAILED" in tail.text
            assert "value of secret" not in tail.text
            assert (await root.get("topics/secret/messages"))["records"]
            assert [one["user"] for one in (await root.get("users"))["items"]] == ["ann", "root"]
