"""The client's side of each SASL mechanism, byte by byte."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from parley.protocol.security.logins import BearerLogin, BearerToken, Login, LoginRefused, PlainLogin, ScramLogin

NONCE = "rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram(username: str = "user", password: str = "pencil", *, is_token: bool = False) -> ScramLogin:
    return ScramLogin("SCRAM-SHA-256", username, password, is_token=is_token, nonce=lambda: NONCE)


async def sent(login: Login, *responses: bytes) -> list[bytes]:
    """Return the tokens that the client sends to a server with these responses. Raises LoginRefused."""
    exchange = await login.exchange()
    tokens = [next(exchange)]
    for response in responses:
        try:
            tokens.append(exchange.send(response))
        except StopIteration:
            break
    return tokens


async def test_plain() -> None:
    assert await sent(PlainLogin("älice", "se,c=ret"), b"") == ["\0älice\0se,c=ret".encode()]


async def test_scram_as_in_rfc_7677() -> None:
    login = scram()
    expected = [
        b"n,,n=user,r=" + NONCE.encode(),
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    ]
    assert await sent(login, CHALLENGE, FINAL) == expected
    assert await sent(login, CHALLENGE, FINAL) == expected


async def test_scram_escapes_names_and_marks_tokens() -> None:
    assert await sent(scram("a,b=c", is_token=True)) == [f"n,,n=a=2Cb=3Dc,r={NONCE},tokenauth=true".encode()]


@pytest.mark.parametrize(
    "responses",
    [
        (CHALLENGE.replace(b"r=r", b"r=x"),),
        (b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",),
        (CHALLENGE.replace(b"i=4096", b"i=4095"),),
        (CHALLENGE.replace(b"i=4096", b"i=99999999"),),
        (CHALLENGE.replace(b"i=4096", b"i=x"),),
        (CHALLENGE.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=%"),),
        (b"m=later," + CHALLENGE,),
        (b"\xff\xfe",),
        (b"",),
        (b"e=unknown-user",),
        (CHALLENGE, b"e=invalid-proof"),
        (CHALLENGE, b"v=" + base64.b64encode(b"another signature, of an impostor")),
        (CHALLENGE, b""),
    ],
)
async def test_scram_refuses_servers_that_do_not_know_the_user(responses: tuple[bytes, ...]) -> None:
    with pytest.raises(LoginRefused) as raised:
        await sent(scram(), *responses)
    assert "pencil" not in str(raised.value)


class _Tokens:
    async def token(self) -> BearerToken:
        return BearerToken("abc.def.ghi", {"traceId": "1", "tenant": "x"})


async def test_bearer_tokens() -> None:
    login = BearerLogin(_Tokens())
    first = b"n,,\x01auth=Bearer abc.def.ghi\x01traceId=1\x01tenant=x\x01\x01"
    assert await sent(login, b"") == [first]
    assert await sent(login, b'{"status":"invalid_token"}', b"") == [first, b"\x01"]


def secrets_shown() -> Iterator[str]:
    yield repr(PlainLogin("alice", "marked"))
    yield repr(scram(password="marked"))
    yield repr(BearerToken("marked"))


def test_no_repr_shows_a_secret() -> None:
    for shown in secrets_shown():
        assert "marked" not in shown
