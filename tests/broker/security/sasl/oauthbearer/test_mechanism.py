"""OAUTHBEARER: signed tokens and forged ones, keys that change, and tokens without a signature."""

from __future__ import annotations

import asyncio
import hmac
import inspect
import json
import ssl
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.client import BadStatusLine
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event
from typing import Any
from urllib.error import URLError

import pytest

from parley.broker.config import ConfigError
from parley.broker.security.principal import user
from parley.broker.security.sasl.mechanism import Exchange, LoginRefused, Mechanism, Reply
from parley.broker.security.sasl.oauthbearer.issuer_keys import UNKNOWN_KEY_S, FetchedKeys
from parley.broker.security.sasl.oauthbearer.mechanism import BearerExchange
from parley.broker.security.sasl.oauthbearer.signed_tokens import Expected, SignedVerifier
from parley.broker.security.sasl.oauthbearer.token_verifier import TokenRefused, VerifiedToken
from tests.broker.security.sasl.credentials import WALL_MS, mechanism
from tests.broker.security.sasl.tokens import ISSUER, claims, jwk, jwks, message, signed
from tests.support.certificates import Authority

INVALID = b'{"status":"invalid_token"}'


class Keys:
    """Keys that never change."""

    def __init__(self, *kids: str, **more: str) -> None:
        self._keys = [jwk(kid, **more) for kid in kids]

    def renew(self, key_id: str | None) -> None:
        """They are always fresh."""

    def close(self) -> None:
        """Release nothing."""

    def find(self, key_id: str | None) -> list[dict[str, Any]]:
        return [key for key in self._keys if key_id in (None, key["kid"])]


EXPECTED = Expected(audiences=("other", "kafka"), issuer=ISSUER)


async def evaluated(exchange: Exchange, token: bytes) -> Reply:
    reply = exchange.evaluate(token)
    return await reply if inspect.isawaitable(reply) else reply


async def accepted(exchange: Exchange, token: str) -> bool:
    """Log in with a token; a client that is refused acknowledges the error, and gets it once more."""
    reply = await evaluated(exchange, message(token))
    if reply.identity is not None:
        assert (reply.token, reply.identity.principal) == (b"", user("alice"))
        return True
    assert reply.token == INVALID
    with pytest.raises(LoginRefused) as refused:
        await evaluated(exchange, b"\x01")
    assert refused.value.client_message == INVALID.decode()
    assert token not in str(refused.value)
    return False


def exchange(*kids: str, expected: Expected = EXPECTED, **more: str) -> BearerExchange:
    return BearerExchange(SignedVerifier(Keys(*kids or ("rsa", "ec"), **more), expected))


# Tokens are made when their test runs: minutes may pass between the collection of the tests and that moment.
@pytest.mark.parametrize(
    "token",
    [
        signed,
        lambda: signed("ec"),
        lambda: signed(algorithm="RS512"),
        lambda: signed(algorithm="PS256"),
        lambda: signed(named=None),
        lambda: signed(aud=["kafka", "x"]),
        lambda: signed(exp=time.time() - 2),
        lambda: signed(scope="read write"),
        lambda: signed(scope=["read"]),
    ],
)
async def test_a_signed_token_logs_its_subject_in(token: Callable[[], str]) -> None:
    assert await accepted(exchange(), token())


async def test_the_issuers_clock_may_be_ahead() -> None:
    now = int(time.time())
    assert await accepted(exchange(), signed(iat=now + 3600, exp=now + 7200))


async def test_a_session_ends_with_its_token() -> None:
    expires = int(time.time()) + 77
    reply = await evaluated(exchange(), message(signed(exp=expires)))
    assert reply.identity is not None
    assert reply.identity.expires_at_ms == expires * 1000


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _with_shared_secret(secret: bytes) -> str:
    head = f"{_text(json.dumps({'alg': 'HS256', 'kid': 'rsa'}).encode())}.{_text(json.dumps(claims()).encode())}"
    return f"{head}.{_text(hmac.digest(secret, head.encode(), 'sha256'))}"


def _tampered(token: str) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{_text(json.dumps(claims(sub='root')).encode())}.{signature}"


def _unsigned(algorithm: str = "none") -> str:
    parts = [{"alg": algorithm, "kid": "rsa"}, claims()]
    return ".".join(_text(json.dumps(part).encode()) for part in parts) + "."


FORGED: Mapping[str, Callable[[], str]] = {
    "stranger's key": lambda: signed("stranger", named="rsa"),
    "stranger's key, unnamed": lambda: signed("stranger", named=None),
    "unknown key": lambda: signed("stranger"),
    "changed claims": lambda: _tampered(signed()),
    "unsigned": _unsigned,
    "unsigned, under another name": lambda: _unsigned("RS256"),
    "public key as a shared secret": lambda: _with_shared_secret(json.dumps(jwk("rsa")).encode()),
    "expired": lambda: signed(exp=time.time() - 40),
    "without expiry": lambda: signed(exp=None),
    "not yet valid": lambda: signed(nbf=time.time() + 100),
    "without time of issue": lambda: signed(iat=None),
    "time of issue of another type": lambda: signed(iat=["now"]),
    "another issuer": lambda: signed(iss="https://evil.example"),
    "without issuer": lambda: signed(iss=None),
    "another audience": lambda: signed(aud="elsewhere"),
    "without audience": lambda: signed(aud=None),
    "without subject": lambda: signed(sub=None),
    "empty subject": lambda: signed(sub=" "),
    "subject of another type": lambda: signed(sub=["alice"]),
    "scope of another type": lambda: signed(scope=5),
    "no token": lambda: "x",
    "algorithm of another type": lambda: ".".join((_text(b'{"alg": ["RS256"]}'), _text(b"{}"), "")),
    "nested": lambda: _text(b"[" * 10_000) + ".e30.",
    "header of 20 kB": lambda: signed(named="rsa", header_of=20_000),
}


@pytest.mark.parametrize("token", FORGED.values(), ids=list(FORGED))
async def test_a_forged_or_unfit_token_is_refused(token: Callable[[], str]) -> None:
    assert not await accepted(exchange(), token())


async def test_a_key_verifies_only_tokens_of_its_algorithm() -> None:
    assert not await accepted(exchange("rsa", use="enc"), signed())
    assert not await accepted(exchange("rsa", alg="PS256"), signed())
    assert await accepted(exchange("rsa", alg="RS256"), signed())


async def test_without_expectations_any_issuer_and_audience_is_accepted() -> None:
    lenient = Expected(name_claim="client_id")
    reply = await evaluated(
        exchange(expected=lenient), message(signed(iss="https://x", aud="y", sub=None, client_id="app"))
    )
    assert reply.identity is not None
    assert reply.identity.principal == user("app")


async def test_nobody_acts_for_another_user() -> None:
    assert (await evaluated(exchange(), message(signed(), authorization_id="alice"))).identity is not None
    with pytest.raises(LoginRefused) as refused:
        await evaluated(exchange(), message(signed(), authorization_id="bob"))
    assert refused.value.client_message == (
        "Authentication failed: Client requested an authorization id (bob) that is different from the token's "
        "principal name (alice)"
    )


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"n,,\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"\x01",
    ],
)
async def test_a_malformed_message_is_refused(first: bytes) -> None:
    with pytest.raises(LoginRefused) as refused:
        await evaluated(exchange(), first)
    assert refused.value.client_message == ""


def _seconds(call: Callable[[], object]) -> float:
    """Return the processor time of the fastest of five calls."""
    times = []
    for _ in range(5):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times)


def test_a_long_message_that_does_not_match_costs_little_more_than_one_that_does() -> None:
    """Clients without an account send it, and it is parsed on the event loop."""

    def refuse(first: bytes) -> None:
        with suppress(LoginRefused):
            exchange().evaluate(first)

    matching = message("a" * 500_000)
    other = b"n,a=" + b"b" * len(matching)
    assert _seconds(lambda: refuse(other)) < 4 * _seconds(lambda: refuse(matching))


async def test_extensions_are_ignored() -> None:
    with_extension = message(signed(), extensions="traceId=123\x01")
    assert (await evaluated(exchange(), with_extension)).identity is not None


# --- Keys ---


class Issuer:
    """An address of keys, as the test sets them."""

    def __init__(self, *kids: str) -> None:
        self.kids = kids
        self.fetches = 0
        self.now = 0.0
        self.is_down = False
        self.may_respond = Event()
        self.may_respond.set()
        self.error: Exception = URLError("down")
        self.keys = FetchedKeys(
            "https://issuer", self._fetch, refresh_s=3600, backoff_s=1, backoff_max_s=4, clock=lambda: self.now
        )

    def _fetch(self) -> bytes:
        self.fetches += 1
        assert self.may_respond.wait(10)
        if self.is_down:
            raise self.error
        return jwks(*self.kids)

    async def accepts(self, token: str) -> bool:
        return await accepted(BearerExchange(SignedVerifier(self.keys, EXPECTED)), token)

    async def fetched(self) -> None:
        """Wait for the fetch in progress: a login with an unknown key does, too."""
        await (self.keys.renew("never published") or asyncio.sleep(0))


async def test_keys_are_fetched_once_for_many_logins() -> None:
    issuer = Issuer("rsa")
    assert all(await asyncio.gather(*(issuer.accepts(signed()) for _ in range(20))))
    issuer.now = 3599
    assert await issuer.accepts(signed())
    assert issuer.fetches == 1
    issuer.now = 3601
    assert await issuer.accepts(signed())
    await issuer.fetched()
    assert issuer.fetches == 2


async def test_a_login_with_a_known_key_does_not_wait_for_a_slow_issuer() -> None:
    issuer = Issuer("rsa")
    assert await issuer.accepts(signed())
    issuer.now = 3601
    issuer.may_respond.clear()
    assert issuer.keys.renew("rsa") is None, "the keys are due, and their fetch has begun"
    unknown = asyncio.create_task(issuer.accepts(signed("ec")))
    assert await asyncio.wait_for(issuer.accepts(signed()), 5)
    issuer.kids = ("rsa", "ec")
    issuer.may_respond.set()
    assert await unknown, "a login with an unknown key waits"
    assert issuer.fetches == 2


class _Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


async def test_keys_are_fetched_again_without_a_login_until_they_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[_Timer] = []
    loop = asyncio.get_running_loop()
    usual = loop.call_later

    def call_later(delay: float, call: Callable[..., None], *given: Any) -> Any:
        if delay != 3600:
            return usual(delay, call, *given)
        timers.append(_Timer(call))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", call_later)
    issuer = Issuer("rsa")
    assert await issuer.accepts(signed())
    issuer.kids = ("ec",)
    timers[0].call()
    await issuer.fetched()
    assert not await issuer.accepts(signed()), "the key has been withdrawn"
    issuer.is_down = True
    timers[1].call()
    await issuer.fetched()
    assert not timers[2].is_cancelled
    issuer.keys.close()
    assert timers[2].is_cancelled


async def test_a_login_that_is_cut_off_leaves_the_fetch_to_the_others() -> None:
    issuer = Issuer("rsa")
    issuer.may_respond.clear()
    first, second = (asyncio.create_task(issuer.accepts(signed())) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    issuer.may_respond.set()
    assert await second
    assert issuer.fetches == 1


async def test_the_end_of_the_process_does_not_wait_for_an_issuer() -> None:
    issuer = Issuer("rsa")
    issuer.may_respond.clear()
    login = asyncio.create_task(issuer.accepts(signed()))
    await asyncio.sleep(0)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "issuer keys"] == [True]
    issuer.may_respond.set()
    assert await login


class Responding(BaseHTTPRequestHandler):
    """An issuer that never completes its headers or its body, though it never pauses for long, or responds at once."""

    def do_GET(self) -> None:
        if self.path != "/headers":
            self.send_response(200)
            self.end_headers()
        if self.path == "/keys":
            self.wfile.write(jwks("rsa"))
            return
        with suppress(OSError):
            while True:
                self.wfile.write(b" ")
                time.sleep(0.05)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(params=["http", "https"])
def fetching(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Mechanism]]:
    """A function that returns a mechanism whose keys are at the path of a ``Responding``."""
    authority = Authority()
    options = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.write(tmp_path / "authority"))}
    with ThreadingHTTPServer(("127.0.0.1", 0), Responding) as server:
        if request.param == "https":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(authority.issue("issuer", "127.0.0.1").write_pem(tmp_path / "issuer.pem"))
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"{request.param}://127.0.0.1:{server.server_port}"
        yield lambda path: mechanism(
            "OAUTHBEARER",
            options=options,
            properties={"sasl.oauthbearer.jwks.endpoint.url": url + path, "sasl.login.read.timeout.ms": "1000"},
        )
        server.shutdown()


async def test_keys_are_fetched(fetching: Callable[[str], Mechanism]) -> None:
    assert await accepted(fetching("/keys").begin(), signed())


@pytest.mark.parametrize("path", ["/headers", "/body"])
async def test_a_fetch_ends_though_the_issuer_sends_byte_after_byte(
    fetching: Callable[[str], Mechanism], path: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not await asyncio.wait_for(accepted(fetching(path).begin(), signed()), 30)
    (line,) = [each for each in caplog.records if "cannot be fetched" in each.message]
    assert line.__dict__["reason"] == "no complete response within 1 s"


async def test_a_new_key_is_fetched_when_a_token_names_it() -> None:
    issuer = Issuer("rsa")
    await issuer.accepts(signed())
    issuer.kids = ("ec",)
    issuer.now = UNKNOWN_KEY_S + 1
    assert await issuer.accepts(signed("ec"))
    assert not await issuer.accepts(signed()), "the old key has been withdrawn"
    assert issuer.fetches == 2


async def test_unknown_keys_do_not_flood_the_issuer() -> None:
    issuer = Issuer("rsa")
    for index in range(50):
        assert not await issuer.accepts(signed("stranger", named=f"key-{index}"))
    assert issuer.fetches == 1
    assert await issuer.accepts(signed())


@pytest.mark.parametrize("error", [URLError("down"), BadStatusLine("not HTTP")])
async def test_old_keys_stay_while_the_issuer_is_down(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer("rsa")
    issuer.error = error
    await issuer.accepts(signed())
    issuer.is_down, issuer.now = True, 4000
    assert await issuer.accepts(signed())
    await issuer.fetched()
    assert "the keys that verify tokens cannot be fetched" in caplog.text
    assert await issuer.accepts(signed())
    assert issuer.fetches == 2, "it waits before it tries again"
    issuer.now, issuer.is_down = 4001.5, False
    assert await issuer.accepts(signed())
    await issuer.fetched()
    assert issuer.fetches == 3


async def test_an_issuer_that_comes_late_is_asked_again() -> None:
    issuer = Issuer("rsa")
    issuer.is_down = True
    assert not await issuer.accepts(signed())
    issuer.is_down, issuer.now = False, 1.1
    assert await issuer.accepts(signed())


async def test_a_file_of_keys_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(jwks("rsa"))
    bearer = mechanism("OAUTHBEARER", properties={"sasl.oauthbearer.jwks.endpoint.url": path.as_uri()})
    assert await accepted(bearer.begin(), signed())
    assert not await accepted(bearer.begin(), signed("ec"))
    path.write_bytes(jwks("ec"))
    assert await accepted(bearer.begin(), signed("ec"))
    path.write_bytes(b"{broken")
    assert await accepted(bearer.begin(), signed("ec")), "the old keys stay"


@pytest.mark.parametrize("url", ["", "ftp://x/keys", "https://", "file:///nowhere/keys.json"])
def test_keys_that_cannot_be_used_are_a_problem_of_the_configuration(url: str) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url"):
        mechanism("OAUTHBEARER", properties={"sasl.oauthbearer.jwks.endpoint.url": url})


# --- Other verifiers ---

UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)


def _bare(**changed: Any) -> str:
    found = {"sub": "alice", "exp": WALL_MS / 1000 + 10, **changed}
    parts: list[Mapping[str, Any]] = [
        {"alg": "none"},
        {key: value for key, value in found.items() if value is not None},
    ]
    return ".".join(_text(json.dumps(part).encode()) for part in parts) + "."


@pytest.mark.parametrize(
    ("token", "is_accepted"),
    [
        (_bare(), True),
        (_bare(iat=WALL_MS / 1000), True),
        (_bare(exp=WALL_MS / 1000 - 1), False),
        (_bare(exp=None), False),
        (_bare(exp="soon"), False),
        (_bare(exp=1e300), False),
        (_bare(iat=WALL_MS / 1000 + 5), False),
        (_bare(sub=None), False),
        (_bare(sub=7), False),
        (signed(), False),
        ("a.b.", False),
        ("e30.W10.", False),
    ],
)
async def test_a_token_that_nobody_has_signed(token: str, is_accepted: bool) -> None:
    assert await accepted(mechanism("OAUTHBEARER", handler=UNSECURED).begin(), token) is is_accepted


async def test_an_unsecured_token_may_need_a_scope() -> None:
    options = {"unsecuredValidatorRequiredScope": "a b", "unsecuredValidatorAllowableClockSkewMs": "2000"}
    bearer = mechanism("OAUTHBEARER", options=options)
    assert await accepted(bearer.begin(), _bare(scope=["b", "a"], exp=WALL_MS / 1000 - 1))
    reply = await evaluated(bearer.begin(), message(_bare(scope="a")))
    assert json.loads(reply.token) == {"status": "insufficient_scope", "scope": "a b"}
    reply = await evaluated(bearer.begin(), message(_bare(scope=5)))
    assert json.loads(reply.token) == {"status": "invalid_token"}


def test_unsecured_options_contradict_the_issuers_keys() -> None:
    with pytest.raises(ConfigError, match="signed tokens"):
        mechanism(
            "OAUTHBEARER",
            options={"unsecuredValidatorRequiredScope": "a"},
            properties={"sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example/keys"},
        )


class Asking:
    """What an operator writes: it asks another program."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._known = options["known"]

    async def verify(self, token: str) -> VerifiedToken:
        if token != self._known:
            raise TokenRefused("unknown")
        return VerifiedToken("alice")


async def test_an_operators_verifier_is_asked() -> None:
    bearer = mechanism("OAUTHBEARER", options={"known": "t-1"}, handler=f"{__name__}.Asking")
    assert await accepted(bearer.begin(), "t-1")
    assert not await accepted(bearer.begin(), "t-2")
