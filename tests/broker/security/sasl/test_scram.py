"""The server side of SCRAM, with the client side of ``parley.protocol.security.logins`` as its counterpart."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable

import pytest

from parley.broker.security.principal import Principal, user
from parley.broker.security.sasl.credential_source import TokenLogin
from parley.broker.security.sasl.mechanism import Exchange, LoginRefused, Reply
from parley.protocol.security.logins import ScramLogin
from parley.protocol.security.scram import client_proof, salted_password
from tests.broker.security.sasl.credentials import SALT, SCRAM, Users, credential, mechanism

USERS = Users({"alice": "secret", "a,b=c": "comma"})


def taken(exchange: Exchange, token: bytes) -> Reply:
    reply = exchange.evaluate(token)
    assert isinstance(reply, Reply)
    return reply


async def log_in(name: str, users: Users, login: ScramLogin) -> Reply:
    """Both sides of a login, from the first message to the server's last reply."""
    exchange = mechanism(name, users).begin()
    client = await login.exchange()
    reply = taken(exchange, next(client))
    assert reply.identity is None
    reply = taken(exchange, client.send(reply.token))
    with pytest.raises(StopIteration):
        client.send(reply.token)
    return reply


@pytest.mark.parametrize("name", SCRAM)
@pytest.mark.parametrize(("who", "password"), list(USERS.passwords.items()))
async def test_a_user_logs_in(name: str, who: str, password: str) -> None:
    reply = await log_in(name, USERS, ScramLogin(name, who, password))
    assert reply.identity is not None
    assert reply.identity.principal == user(who)
    assert not reply.identity.authenticated_by_token
    assert reply.identity.expires_at_ms is None


async def test_a_token_logs_its_owner_in_until_it_expires() -> None:
    owner = Principal("User", "bob")
    users = Users(tokens={"id": TokenLogin(owner, credential("SCRAM-SHA-256", "hmac"), 5)})
    reply = await log_in("SCRAM-SHA-256", users, ScramLogin("SCRAM-SHA-256", "id", "hmac", is_token=True))
    assert reply.identity is not None
    assert (reply.identity.principal, reply.identity.authenticated_by_token) == (owner, True)
    assert reply.identity.expires_at_ms == 5


@pytest.mark.parametrize(
    "login",
    [
        ScramLogin("SCRAM-SHA-256", "alice", "wrong"),
        ScramLogin("SCRAM-SHA-256", "nobody", "secret"),
        ScramLogin("SCRAM-SHA-256", "alice", "secret", is_token=True),
    ],
)
async def test_unknown_users_and_wrong_passwords_get_the_same_messages(login: ScramLogin) -> None:
    exchange = mechanism("SCRAM-SHA-256", USERS).begin()
    client = await login.exchange()
    first = taken(exchange, next(client)).token.decode()
    if not login.is_token:
        assert len(first.split(",")[1]) == len(f"s={b64encode(SALT).decode()}")
    assert first.endswith(",i=4096")
    with pytest.raises(LoginRefused) as refused:
        exchange.evaluate(client.send(first.encode()))
    assert (str(refused.value), refused.value.client_message) == ("wrong user or password", "")
    assert exchange.user == login.username


async def test_an_unknown_user_has_the_same_salt_at_each_login() -> None:
    def salt(name: str, who: str) -> str:
        return taken(mechanism(name, USERS).begin(), f"n,,n={who},r=x".encode()).token.decode().split(",")[1]

    assert salt("SCRAM-SHA-256", "nobody") == salt("SCRAM-SHA-256", "nobody")
    assert len({salt("SCRAM-SHA-256", "nobody"), salt("SCRAM-SHA-256", "none"), salt("SCRAM-SHA-512", "nobody")}) == 3


async def test_the_decoys_own_keys_log_nobody_in() -> None:
    """Not even a client that could find a password for a decoy gets in."""

    class Known(Users):
        def decoy(self, mechanism: str, user: str, *, is_token: bool = False):  # type: ignore[no-untyped-def]
            return credential(mechanism, "found")

    exchange = mechanism("SCRAM-SHA-256", Known()).begin()
    client = await ScramLogin("SCRAM-SHA-256", "nobody", "found").exchange()
    with pytest.raises(LoginRefused, match="wrong user"):
        exchange.evaluate(client.send(taken(exchange, next(client)).token))


FIRST: list[bytes] = [
    b"",
    b"\xff",
    b"n,,",
    b"p=tls-unique,,n=alice,r=x",
    b"n,,r=x,n=alice",
    b"n,,n=alice,r=",
    b"n,,n=alice,r=" + b"x" * 1025,
    b"n,,n=" + b"x" * 17_000 + b",r=y",
    b"n,,n=a=b,r=x",
    b"n,,n=alice,r=x\x00",
    b"n,a=a=,n=alice,r=x",
]


@pytest.mark.parametrize("message", FIRST)
def test_a_malformed_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(LoginRefused):
        mechanism("SCRAM-SHA-256", USERS).begin().evaluate(message)


def test_nobody_acts_for_another_user() -> None:
    with pytest.raises(LoginRefused) as refused:
        mechanism("SCRAM-SHA-256", USERS).begin().evaluate(b"n,a=bob,n=alice,r=x")
    assert "authorization id" in refused.value.client_message
    taken(mechanism("SCRAM-SHA-256", USERS).begin(), b"n,a=alice,n=alice,r=x")


@pytest.mark.parametrize(
    "altered",
    [
        lambda message: b"",
        lambda message: b"\xff",
        lambda message: message.replace(b"c=biws", b"c=eSws"),
        lambda message: message.replace(b",r=", b",r=y"),
        lambda message: message.rpartition(b",p=")[0],
        lambda message: message.rpartition(b",p=")[0] + b",p=AAA",
        lambda message: message + b"=",
        lambda message: message + b",x=y",
    ],
)
async def test_a_malformed_final_message_is_refused(altered: Callable[[bytes], bytes]) -> None:
    exchange = mechanism("SCRAM-SHA-256", USERS).begin()
    client = await ScramLogin("SCRAM-SHA-256", "alice", "secret").exchange()
    final = client.send(taken(exchange, next(client)).token)
    with pytest.raises(LoginRefused):
        exchange.evaluate(altered(final))


async def test_a_recorded_login_cannot_be_repeated() -> None:
    """The server's part of the nonce is new each time."""
    name = "SCRAM-SHA-256"
    client = await ScramLogin(name, "alice", "secret").exchange()
    exchange, later = mechanism(name, USERS).begin(), mechanism(name, USERS).begin()
    first = next(client)
    final = client.send(taken(exchange, first).token)
    taken(exchange, final)
    taken(later, first)
    with pytest.raises(LoginRefused):
        later.evaluate(final)


async def test_a_credential_with_too_few_iterations_is_refused() -> None:
    name = "SCRAM-SHA-256"
    exchange = mechanism(name, Users({"alice": "secret"}, iterations=1000)).begin()
    challenge = taken(exchange, b"n,,n=alice,r=x").token
    bare = b"c=biws," + challenge.partition(b",")[0]
    salted = salted_password(name, b"secret", SALT, 1000)
    proof = b64encode(client_proof(name, salted, b",".join((b"n=alice,r=x", challenge, bare))))
    with pytest.raises(LoginRefused, match="fewer than 4096"):
        exchange.evaluate(bare + b",p=" + proof)
