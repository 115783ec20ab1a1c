"""The security settings of the Java client are translated to librdkafka's. Only librdkafka gets the secrets."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from parley.protocol.security.librdkafka import librdkafka_settings, unused_settings
from tests.support.certificates import Authority

ROOT = Authority("root")
ALICE = ROOT.issue("alice")


def test_key_stores_become_pem(tmp_path: Path) -> None:
    found = librdkafka_settings(
        {
            "client.id": "c",
            "security.protocol": "ssl",
            "ssl.keystore.location": str(ALICE.write_pkcs12(tmp_path / "alice.p12", "secret")),
            "ssl.keystore.password": "secret",
            "ssl.truststore.location": str(ROOT.write(tmp_path / "root.pem")),
            "ssl.endpoint.identification.algorithm": "",
            "ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        }
    )
    assert found == {
        "client.id": "c",
        "security.protocol": "SSL",
        "ssl.ca.pem": ROOT.pem,
        "ssl.certificate.pem": ALICE.chain,
        "ssl.key.pem": ALICE.key(),
        "ssl.endpoint.identification.algorithm": "none",
        "ssl.cipher.suites": "ECDHE-ECDSA-AES128-GCM-SHA256",
    }
    Producer(found)  # librdkafka accepts all of them


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_jaas_line_becomes_user_and_password(mechanism: str) -> None:
    module = "Plain" if mechanism == "PLAIN" else "Scram"
    line = f'{module}LoginModule required username="al\\"ice" password="secret";'
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": line}
    found = librdkafka_settings(given)
    del given["sasl.jaas.config"]
    assert found == given | {"sasl.username": 'al"ice', "sasl.password": "secret"}


def test_tokens_come_from_a_callback() -> None:
    found = librdkafka_settings(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": 'OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="alice";',
        }
    )
    token, expires, _, extensions = found["oauth_cb"]("")
    assert token.count(".") == 2
    assert expires > 0
    assert extensions == {}


def test_librdkafka_accepts_a_token_that_does_not_expire(tmp_path: Path) -> None:
    """It waits in vain for another one if it is told that the token has expired."""
    path = tmp_path / "token"
    path.write_text("e30.e30.x")
    found = librdkafka_settings(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": "OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": "OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        }
    )
    assert found["oauth_cb"]("")[1] > time.time()
    Producer(found)


def test_librdkafkas_own_settings_are_kept() -> None:
    own = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a", "ssl.ca.location": "/ca"}
    assert librdkafka_settings(own) == own | {"ssl.endpoint.identification.algorithm": "https"}


def test_a_delegation_token_is_refused() -> None:
    line = 'ScramLoginModule required username="id" password="marked" tokenauth="true";'
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": line}
    with pytest.raises(ValueError, match="delegation token") as raised:
        librdkafka_settings(given)
    assert "marked" not in str(raised.value)


def test_settings_without_effect() -> None:
    given = {"sasl.jaas.config": "x", "ssl.truststore.location": "y", "client.id": "z"}
    assert unused_settings(given) == ["ssl.truststore.location", "sasl.jaas.config"]
    assert unused_settings(given | {"security.protocol": "SSL"}) == ["sasl.jaas.config"]
    assert unused_settings(given | {"security.protocol": "sasl_ssl"}) == []
