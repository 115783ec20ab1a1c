"""The client talks to Apache Kafka over TLS, with each login, as Kafka's own client does with the same properties."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from parley.protocol.client import Client, NotAuthenticated
from parley.protocol.errors import KafkaError
from parley.protocol.security.client_security import ClientSecurity, client_security
from parley.protocol.security.logins import PlainLogin
from tests.support.certificates import Authority
from tests.support.kafka import Kafka4

pytestmark = pytest.mark.system

KAFKAS = "org.apache.kafka.common.security"
SESSION_MS = 600_000
"""The lifetime of sessions. None expires in a test, however slow the machine is: Kafka then closes the connection."""
RENEWED_AFTER_S = 1.1
"""Kafka rejects a login less than a second after the previous login."""


class Secured(NamedTuple):
    """A broker of Apache Kafka with a listener for each security protocol, and the files of its clients."""

    kafka: Kafka4
    trust: str
    alice: str

    def properties(self, listener: str, mechanism: str = "", login: str = "") -> dict[str, str]:
        protocol = {"TLS": "SSL", "BARE": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}[listener]
        given = {"security.protocol": protocol, "ssl.truststore.location": self.trust}
        if listener == "TLS":
            given |= {"ssl.keystore.location": self.alice, "ssl.keystore.password": "store pass"}
        return given | ({"sasl.mechanism": mechanism, "sasl.jaas.config": login} if mechanism else {})

    async def logs_in(self, listener: str, properties: dict[str, str]) -> None:
        """Log in. Raises NotAuthenticated if Kafka rejects the login."""
        async with Client(self.kafka.listeners[listener], security=client_security(properties)) as client:
            assert (await client.metadata([])).brokers


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = tmp_path_factory.mktemp("secured")
    authority = Authority()
    trust = authority.write(made / "trust.pem")
    broker = authority.issue("broker", "127.0.0.1").write_pem(made / "broker.pem")
    alice = authority.issue("alice").write_pkcs12(made / "alice.p12", "store pass")
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trust),
        "listener.name.tls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "connections.max.reauth.ms": str(SESSION_MS),
    }
    for name in ("bare", "both"):
        prefix = f"listener.name.{name}"
        settings |= {
            f"{prefix}.plain.sasl.jaas.config": f'{KAFKAS}.plain.PlainLoginModule required user_alice="a\\\\"b";',
            f"{prefix}.scram-sha-256.sasl.jaas.config": f"{KAFKAS}.scram.ScramLoginModule required;",
            f"{prefix}.scram-sha-512.sasl.jaas.config": f"{KAFKAS}.scram.ScramLoginModule required;",
            f"{prefix}.oauthbearer.sasl.jaas.config": f"{KAFKAS}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";',
        }
    listeners = {"TLS": "SSL", "BARE": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}
    kafka = Kafka4(made, settings, listeners)
    try:
        _add_users(kafka.bootstrap_servers)
        yield Secured(kafka, str(trust), str(alice))
    finally:
        kafka.close()


def _add_users(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    changes = [
        UserScramCredentialUpsertion("al,i=ce", ScramCredentialInfo(mechanism, 4096), b"secret", b"salt-of-alice")
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for change in changes:
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(30)


LOGINS = {
    "PLAIN": f'{KAFKAS}.plain.PlainLoginModule required username="alice" password="a\\"b";',
    "SCRAM-SHA-256": f'{KAFKAS}.scram.ScramLoginModule required username="al,i=ce" password="secret";',
    "SCRAM-SHA-512": f'{KAFKAS}.scram.ScramLoginModule required username="al,i=ce" password="secret";',
    "OAUTHBEARER": f'{KAFKAS}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="alice";',
}


async def test_a_client_certificate(secured: Secured) -> None:
    await secured.logs_in("TLS", secured.properties("TLS"))
    stranger = secured.properties("BOTH") | {"security.protocol": "SSL"}
    with pytest.raises(NotAuthenticated, match="rejects the client's certificate"):
        await secured.logs_in("TLS", stranger)


@pytest.mark.parametrize("listener", ["BARE", "BOTH"])
@pytest.mark.parametrize("mechanism", LOGINS)
async def test_each_login(secured: Secured, listener: str, mechanism: str) -> None:
    await secured.logs_in(listener, secured.properties(listener, mechanism, LOGINS[mechanism]))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password(secured: Secured, mechanism: str) -> None:
    wrong = LOGINS[mechanism].replace('password="', 'password="marked-')
    with pytest.raises(NotAuthenticated, match="rejects the login") as raised:
        await secured.logs_in("BOTH", secured.properties("BOTH", mechanism, wrong))
    assert "marked" not in str(raised.value)


async def test_a_session_is_renewed_on_the_same_connection(secured: Secured) -> None:
    """The broker closes a connection if a request arrives after the session has expired (KIP-368)."""
    now, most_s = asyncio.get_running_loop().time, SESSION_MS / 1000
    security = client_security(secured.properties("BOTH", "SCRAM-SHA-256", LOGINS["SCRAM-SHA-256"]))
    async with Client(secured.kafka.listeners["BOTH"], security=security) as client:
        began = now()
        first = await client._link(None)
        assert first._login_due is not None
        assert began + 0.8 * most_s < first._login_due < now() + most_s
        due = first._login_due = now() + RENEWED_AFTER_S
        while now() < due:
            await client.metadata([])
        await client.metadata([])
        assert first._login_due > due + 0.8 * most_s, "a new session"
        await client.metadata([])
        assert await client._link(None) is first


async def test_foreign_certificates_and_other_names(secured: Secured, tmp_path: Path) -> None:
    properties = secured.properties("BOTH", "PLAIN", LOGINS["PLAIN"])
    foreign = properties | {"ssl.truststore.location": str(Authority("another").write(tmp_path / "another.pem"))}
    with pytest.raises(NotAuthenticated, match="the broker's certificate is not valid"):
        await secured.logs_in("BOTH", foreign)


async def test_the_wrong_protocol(secured: Secured) -> None:
    with pytest.raises(KafkaError, match="may not use TLS"):
        await secured.logs_in("BARE", secured.properties("BOTH", "PLAIN", LOGINS["PLAIN"]))
    with pytest.raises(KafkaError, match="if the listener uses TLS"):
        await Client(secured.kafka.listeners["BOTH"]).metadata([])


async def test_a_mechanism_that_the_broker_does_not_offer(secured: Secured) -> None:
    tls = client_security(secured.properties("BOTH") | {"security.protocol": "SSL"}).tls
    unknown = ClientSecurity(tls, PlainLogin("alice", "secret", "OTHER"))
    with pytest.raises(NotAuthenticated, match=r"does not accept sasl.mechanism=OTHER; it offers .*PLAIN"):
        await Client(secured.kafka.listeners["BOTH"], security=unknown).metadata([])
