"""Which texts are masked, and which are not."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest

from parley.tools.support_bundle.known_secrets import is_secret, secrets_in
from parley.tools.support_bundle.masks import MASK, Masks

SECRET = 'pa"ss\\w$rd & ü'


def test_a_known_secret_in_every_spelling() -> None:
    masks = Masks([SECRET])
    for spelt in (
        SECRET,
        json.dumps(SECRET),
        repr(SECRET),
        quote(SECRET),
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode(),
    ):
        assert masks.text(f"before {spelt} after").startswith("before ")
        assert SECRET[2:6] not in masks.text(spelt)
        assert "w%24" not in masks.text(spelt)
    assert masks.data({SECRET: [SECRET, 7, None, {"a": SECRET}]}) == {MASK: [MASK, 7, None, {"a": MASK}]}


def test_a_short_secret_is_removed_as_a_word() -> None:
    assert Masks(["a1"]).text("a1 ba1 a1b (a1)") == f"{MASK} ba1 a1b ({MASK})"
    assert Masks(["", "true", " "]).text("it is true") == "it is true"


def test_the_longer_of_two_secrets_is_removed_first() -> None:
    assert Masks(["secret-1", "secret-1-and-more"]).text("secret-1-and-more") == MASK


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN PRIVATE KEY-----\nPLANTED\nPLANTED\n-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY----- PLANTED is cut off",
        "Authorization: Basic PLANTED",
        "{'authorization': 'Bearer PLANTED'}",
        "got bearer PLANTEDPLANTEDPLANTED",
        "the token eyJhbGciOiJI.eyJQTEFOVEVE.PLANTED",
        "http://user:PLANTED@host/path",
        'ssl.key.password="PLANTED PLANTED"',
        "ssl.key.password = PLANTED",
        "client_secret=PLANTED&more=1",
        '{"clientSecret": "PLANTED"}',
        'the line \'PlainLoginModule required username="u" password="PLANTED" user_bob="PLANTED";\'',
        '"sasl.jaas.config=X required password=\\"PLANTED\\";"',
        "apiKey=PLANTED",
        "  password: PLANTED\n  next: 1",
    ],
)
def test_text_that_looks_like_a_secret_is_masked(text: str) -> None:
    assert "PLANTED" not in Masks([]).text(text)


@pytest.mark.parametrize(
    "text",
    [
        "partition topic-0 at offset 17, leader epoch 3",
        "the password is wrong",
        "ssl.keystore.password: the file cannot be opened with it",
        "etcd://db1:2379,db2:2379/parley?user=parley&password-file=/etc/parley/password",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "delegation.token.max.lifetime.ms",
    ],
)
def test_harmless_text_is_kept(text: str) -> None:
    assert Masks([]).text(text).replace(MASK, "/etc/parley/password") == text


def test_settings_are_judged_by_their_definitions() -> None:
    assert is_secret("ssl.key.password")
    assert is_secret("listener.name.out.scram-sha-256.sasl.jaas.config")
    assert is_secret("zookeeper.ssl.keystore.password")
    assert is_secret("ssl.key.pasword", "misspelled")
    assert is_secret("config.providers.vault.param.token")
    assert not is_secret("my.key", "${file:/run/secrets:my}")
    for name in ("log.dirs", "listeners", "coordination.url", "log.message.format.version", "client.id"):
        assert not is_secret(name, "x")


def test_the_secrets_in_values() -> None:
    jaas = (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="p-1" user_b="p-2";'
    )
    found = set(
        secrets_in(
            {
                "sasl.jaas.config": jaas,
                "broken.jaas": "X required password=p-3",
                "some.url": "https://user:p%204@host/?api_key=p-5&size=7",
                "unknown": "24",
                "log.dirs": "/data",
            }
        )
    )
    assert {"p-1", "p-2", "p%204", "p 4", "p-5", jaas} <= found
    assert not {"admin", "24", "/data", "7"} & found
