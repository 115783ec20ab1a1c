"""Java client properties are read as Kafka's client reads them. The errors for unusable properties
contain no secrets."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from parley.protocol.security.client_security import PLAINTEXT, ClientSecurity, client_security, is_security_key
from parley.protocol.security.logins import BearerLogin, PlainLogin, ScramLogin
from parley.protocol.security.tokens import claims_of
from tests.support.certificates import Authority

MODULES = "org.apache.kafka.common.security"
BEARER = f"{MODULES}.oauthbearer.OAuthBearerLoginModule required"
ISSUER = f"{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"


def sasl(mechanism: str, line: str, **more: str) -> dict[str, str]:
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": line}
    return given | {key.replace("_", "."): value for key, value in more.items()}


def test_without_a_protocol_nothing_is_secured() -> None:
    assert client_security({"ssl.truststore.location": "/nowhere"}) == PLAINTEXT
    assert PLAINTEXT.protocol == "PLAINTEXT"


def test_the_protocols(tmp_path: Path) -> None:
    trust = {"ssl.truststore.location": str(Authority().write(tmp_path / "trust.pem"))}
    login = sasl("PLAIN", 'PlainLoginModule required username="a" password="b";')
    for protocol in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        made = client_security(login | trust | {"security.protocol": protocol})
        assert made.protocol == protocol
        assert isinstance(made, ClientSecurity)
        assert (made.login is None) == (protocol == "SSL")


def test_logins_with_a_password() -> None:
    plain = client_security(sasl("PLAIN", f'{MODULES}.plain.PlainLoginModule required username="a" password="b";'))
    assert plain.login == PlainLogin("a", "b")
    line = f'{MODULES}.scram.ScramLoginModule required username="id" password="hmac" tokenauth="true";'
    token = client_security(sasl("SCRAM-SHA-512", line)).login
    assert isinstance(token, ScramLogin)
    assert token.mechanism == "SCRAM-SHA-512"


async def test_an_unsecured_token_has_the_claims_of_its_line() -> None:
    line = (
        f'{BEARER} unsecuredLoginStringClaim_sub="alice" unsecuredLoginNumberClaim_level="3" '
        'unsecuredLoginListClaim_scope=",a,b" unsecuredLoginLifetimeSeconds="60" unsecuredLoginExtension_traceId="7";'
    )
    login = client_security(sasl("OAUTHBEARER", line)).login
    assert isinstance(login, BearerLogin)
    token = await login.tokens.token()
    claims = claims_of(token.value)
    assert (claims["sub"], claims["level"], claims["scope"]) == ("alice", 3, ["a", "b"])
    assert claims["exp"] - claims["iat"] == 60
    assert token.value.endswith(".")
    assert token.extensions == {"traceId": "7"}


async def test_an_unsecured_token_is_never_from_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka rounds the time of issue to milliseconds."""
    monkeypatch.setattr(time, "time", lambda: 1_796_088_345.1786)
    login = client_security(sasl("OAUTHBEARER", f'{BEARER} unsecuredLoginStringClaim_sub="alice";')).login
    assert isinstance(login, BearerLogin)
    assert claims_of((await login.tokens.token()).value)["iat"] == 1_796_088_345.178


async def test_a_token_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    path.write_text("e30.e30.x\n")
    properties = sasl("OAUTHBEARER", f"{BEARER};", sasl_login_callback_handler_class=ISSUER)
    properties["sasl.oauthbearer.token.endpoint.url"] = path.as_uri()
    login = client_security(properties).login
    assert isinstance(login, BearerLogin)
    assert (await login.tokens.token()).value == "e30.e30.x"


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"security.protocol": "TLS"}, "expected one of PLAINTEXT"),
        (
            {"security.protocol": "SASL_SSL"},
            "sasl.mechanism is not set, and its default GSSAPI needs sasl.jaas.config with the Krb5LoginModule",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanisim": "PLAIN",
                "sasl.jaas.config": 'PlainLoginModule required password="marked";',
            },
            r"not set \(did you mean it by sasl.mechanisim\?\), and its default GSSAPI needs the Krb5LoginModule, not",
        ),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OTHER"}, "sasl.mechanism=OTHER is not supported"),
        (sasl("GSSAPI", "Krb5LoginModule required useTicketCache=true;"), "the first part of the brokers' principals"),
        (
            sasl("GSSAPI", "Krb5LoginModule required serviceName=other;", sasl_kerberos_service_name="kafka"),
            "serviceName=other in the JAAS line is not sasl.kerberos.service.name=kafka",
        ),
        (sasl("GSSAPI", "Krb5LoginModule required useKeyTab=true keyTab=x;"), 'needs the option principal="..."'),
        (sasl("GSSAPI", "Krb5LoginModule required useKeyTab=true principal=x;"), 'needs the option keyTab="..."'),
        (
            sasl("GSSAPI", 'Krb5LoginModule required useKeyTab=true keyTab="/none" principal=x;'),
            "keyTab=/none: file not found",
        ),
        (
            sasl("GSSAPI", "Krb5LoginModule required;", sasl_kerberos_service_name="kafka"),
            "needs useKeyTab=true, keyTab and principal, or useTicketCache=true",
        ),
        ({"ssl.engine.factory.class": "a.B"}, "names a Java class"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "needs sasl.jaas.config with the Plain"),
        (sasl("PLAIN", 'ScramLoginModule required username="a" password="marked";'), "needs the PlainLoginModule"),
        (sasl("PLAIN", 'PlainLoginModule required password="marked";'), "needs the option username"),
        (sasl("PLAIN", 'PlainLoginModule required username="a" password="marked"'), "semicolon"),
        (sasl("OAUTHBEARER", f"{BEARER};"), "unsecuredLoginStringClaim_sub"),
        (
            sasl("OAUTHBEARER", f"{BEARER};", sasl_login_refresh_window_factor="80%"),
            "sasl.login.refresh.window.factor=80%: expected a number",
        ),
        (sasl("OAUTHBEARER", f'{BEARER} unsecuredLoginNumberClaim_x="marked";'), "unsecuredLoginNumberClaim_x in sasl"),
        (sasl("OAUTHBEARER", f'{BEARER} unsecuredLoginNumberClaim_x="nan";'), "unsecuredLoginNumberClaim_x in sasl"),
        (
            sasl(
                "OAUTHBEARER",
                f'{BEARER} unsecuredLoginStringClaim_sub="a" unsecuredLoginLifetimeSeconds="marked";',
            ),
            "unsecuredLoginLifetimeSeconds in sasl.jaas.config: expected a whole number of seconds",
        ),
        (sasl("OAUTHBEARER", f"{BEARER};", sasl_login_callback_handler_class="a.B"), "expected OAuthBearerLogin"),
        (sasl("OAUTHBEARER", f"{BEARER};", sasl_login_callback_handler_class=ISSUER), "expected https"),
        (
            sasl("OAUTHBEARER", f'{BEARER} clientSecret="marked";', sasl_login_callback_handler_class=ISSUER)
            | {"sasl.oauthbearer.token.endpoint.url": "https://issuer/token"},
            "needs the option clientId",
        ),
    ],
)
def test_unusable_client_properties_are_refused(properties: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        client_security(properties)
    assert "marked" not in str(raised.value)


def test_security_keys() -> None:
    assert is_security_key("sasl.jaas.config")
    assert is_security_key("ssl.keystore.location")
    assert not is_security_key("ssl.provider")
    assert not is_security_key("client.id")
