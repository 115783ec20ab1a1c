"""Tokens are fetched when needed and reused while they are valid, and no error message contains a secret."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import Request

import pytest

from parley.protocol.security.http_requests import fetch
from parley.protocol.security.logins import LoginRefused
from parley.protocol.security.tokens import ClientCredentials, FileTokens, FreshTokens, UnsecuredTokens
from tests.support.certificates import Authority
from tests.support.ports import free_port

Asked = list[tuple[str, str]]


@contextmanager
def endpoint(*responses: tuple[int, str]) -> Iterator[tuple[str, Asked]]:
    """Run a token endpoint that returns these responses in turn. Yields its URL, and a list of the headers and forms
    that it receives."""
    left, asked = list(responses), Asked()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append((self.headers["Authorization"], form))
            status, body = left.pop(0)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", body)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def credentials(url: str, *, encodes_header: bool = False, patience_s: float = 0.01) -> ClientCredentials:
    return ClientCredentials(
        url, "my id", "marked&1", "a b", backoff_s=0.001, backoff_max_s=patience_s, encodes_header=encodes_header
    )


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_a_token_for_the_credentials_of_a_client() -> None:
    with endpoint((200, json.dumps({"access_token": "a.b.c"})), (200, '{"access_token":"d"}')) as (url, asked):
        assert credentials(url)() == "a.b.c"
        assert credentials(url, encodes_header=True)() == "d"
    form = "grant_type=client_credentials&scope=a+b"
    assert asked == [(basic("my id:marked&1"), form), (basic("my+id:marked%261"), form)]


def test_a_busy_endpoint_is_asked_again() -> None:
    with endpoint((503, ""), (500, ""), (200, '{"access_token":"d"}')) as (url, asked):
        assert credentials(url, patience_s=60)() == "d"
    assert len(asked) == 3


def test_an_endpoint_that_sends_a_byte_at_a_time_is_not_awaited() -> None:
    """Each byte arrives in time, but the whole response does not."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connected, _ = server.accept()
            with connected, suppress(OSError):
                connected.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while not ended.wait(0.01):
                    connected.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            request = Request(f"http://127.0.0.1:{server.getsockname()[1]}/", b"form")
            with pytest.raises(TimeoutError, match=r"no complete response within 0\.1 s"):
                fetch(request, None, 0.1)
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, '{"error":"marked"}'),
        (200, "marked"),
        (200, "{}"),
        (200, '{"access_token":7}'),
        (302, "http://elsewhere/"),
    ],
)
def test_a_refusal_is_final_and_shows_no_secret(status: int, body: str) -> None:
    with endpoint((status, body)) as (url, asked), pytest.raises(LoginRefused) as raised:
        credentials(url)()
    assert len(asked) == 1
    assert "marked" not in str(raised.value)
    assert "marked" not in repr(credentials(url))


def test_an_endpoint_that_cannot_be_reached() -> None:
    with pytest.raises(LoginRefused, match=r"returned no token: .*refused"):
        credentials(f"http://127.0.0.1:{free_port()}/token")()


def test_an_endpoint_that_refuses_a_client_without_a_certificate(tmp_path: Path) -> None:
    """With TLS 1.3 the client sees the refusal only when it reads the response."""
    root = Authority()
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=root.pem)
    serving.verify_mode = ssl.CERT_REQUIRED
    serving.load_cert_chain(root.issue("endpoint", "127.0.0.1").write_pem(tmp_path / "endpoint.pem"))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            accepted, _ = server.accept()
            with serving.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as connected:
                with suppress(ssl.SSLError):
                    connected.do_handshake()
                while socket.socket.recv(connected, 4096):  # a connection that is closed too soon is reset
                    pass

        thread = threading.Thread(target=refuse)
        thread.start()
        try:
            given = credentials(f"https://127.0.0.1:{server.getsockname()[1]}/token", patience_s=0)
            with pytest.raises(LoginRefused, match=r"returned no token: TLSV13_ALERT_CERTIFICATE_REQUIRED"):
                replace(given, tls=ssl.create_default_context(cadata=root.pem))()
        finally:
            thread.join()


async def test_a_token_is_kept_while_it_is_fresh() -> None:
    now, fetched = 1000.0, 0

    def fetch() -> str:
        nonlocal fetched
        fetched += 1
        return UnsecuredTokens({"sub": "a", "exp": now + 100, "n": fetched})()

    tokens = FreshTokens(fetch, {"x": "y"}, window=0.8, clock=lambda: now)
    first = await tokens.token()
    now += 79
    assert await tokens.token() == first
    assert first.extensions == {"x": "y"}
    now += 1
    assert await tokens.token() != first
    assert fetched == 2


async def test_a_token_that_does_not_expire_is_not_kept() -> None:
    given = iter(["e30.e30.1", "e30.e30.2"])
    tokens = FreshTokens(lambda: next(given), {})
    assert [(await tokens.token()).value for _ in range(2)] == ["e30.e30.1", "e30.e30.2"]


@pytest.mark.parametrize("text", ["marked", "a.marked.b", "e30.W10.x"])
async def test_a_malformed_jwt_is_refused(text: str) -> None:
    with pytest.raises(LoginRefused, match="not a JWT") as raised:
        await FreshTokens(lambda: text, {}).token()
    assert "marked" not in str(raised.value)


def test_a_token_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(LoginRefused, match="cannot read the token file"):
        FileTokens(tmp_path / "absent")()
