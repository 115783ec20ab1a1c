"""The keys that the kernel gets are those with which OpenSSL sends."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from parley.broker.security.tls.kernel import _CIPHERS, KernelSending, KeyLog, SendingKeys
from tests.support.certificates import Authority


def test_keys_are_those_of_the_rfc_s_example() -> None:
    """RFC 8448, section 3: the application data of a server."""
    secret = bytes.fromhex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643")
    keys = SendingKeys.derived("TLS_AES_128_GCM_SHA256", secret)
    assert keys.key.hex() == "9f02283b6c9c07efc26bb9f2ac92e356"
    assert keys.vector.hex() == "cf782b88dd83549aadf1e984"
    vector, key, salt, number = keys.vector[4:], keys.key, keys.vector[:4], (7).to_bytes(8, "big")
    assert keys.for_kernel(7) == bytes.fromhex("04033300") + vector + key + salt + number


class Ends(NamedTuple):
    """The contexts of a server and of a client that trusts it."""

    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority()
    own = authority.issue("CN=broker", "localhost").write_pem(folder / "own.pem")
    return own, authority.write(folder / "trusted.pem")


@pytest.fixture
def ends(certificates: tuple[Path, Path]) -> Ends:
    ends = Ends(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    ends.server.load_cert_chain(certificates[0])
    ends.client.load_verify_locations(certificates[1])
    return ends


def key_log(context: ssl.SSLContext) -> KeyLog:
    return KeyLog(context, frozenset(_CIPHERS))


class Handshake:
    """A handshake in memory, step by step, up to the keys for the kernel."""

    def __init__(self, ends: Ends, log: KeyLog) -> None:
        self._to_server, self._to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._server = ends.server.wrap_bio(self._to_server, self._to_client, server_side=True)
        self._client = ends.client.wrap_bio(self._to_client, self._to_server, server_hostname="localhost")
        self._step(self._client)
        self.first_record = self._to_server.read()
        self._to_server.write(self.first_record)
        self.sending = KernelSending(log, self.first_record)

    def _step(self, end: ssl.SSLObject) -> None:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()

    def greet(self) -> None:
        """The server sends its part."""
        self._step(self._server)

    def complete(self) -> list[tuple[int, int, bytes]] | None:
        """Complete the handshake. Returns the options of the socket if the kernel encrypts, else None."""
        self.sending.note_secret()
        self._step(self._client)
        self._step(self._server)
        cipher = self._server.cipher()
        assert cipher is not None
        options: list[tuple[int, int, bytes]] = []
        begins = self.sending.begin(
            self._server.version(),
            cipher[0],
            self._to_client.read(),
            lambda level, name, value: options.append((level, name, value)),
        )
        return options if begins else None


def test_the_kernel_continues_after_the_records_of_openssl(ends: Ends) -> None:
    handshake = Handshake(ends, key_log(ends.server))
    handshake.greet()
    options = handshake.complete()
    assert options is not None
    assert [option[:2] for option in options] == [(6, 31), (282, 1)]
    assert options[1][2].endswith((2).to_bytes(8, "big"))  # after two session tickets


def test_a_client_that_copies_another_s_random_bytes_does_not_choose_its_keys(ends: Ends) -> None:
    log = key_log(ends.server)
    victim, attacker = Handshake(ends, log), Handshake(ends, log)
    victim.sending = KernelSending(log, attacker.first_record)  # as if both were the same
    attacker.greet()
    victim.greet()
    assert victim.complete() is None


def test_without_a_secret_openssl_encrypts(ends: Ends) -> None:
    handshake = Handshake(ends, key_log(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)))
    handshake.greet()
    assert handshake.complete() is None


def test_without_session_tickets_openssl_encrypts(ends: Ends) -> None:
    ends.server.num_tickets = 0
    handshake = Handshake(ends, key_log(ends.server))
    handshake.greet()
    assert handshake.complete() is None


def test_with_tls_1_2_openssl_encrypts(ends: Ends) -> None:
    ends.server.maximum_version = ssl.TLSVersion.TLSv1_2
    handshake = Handshake(ends, key_log(ends.server))
    handshake.greet()
    assert handshake.complete() is None


def test_secrets_that_no_connection_takes_are_bounded(ends: Ends) -> None:
    log = key_log(ends.server)
    for _ in range(200):
        Handshake(ends, log).greet()
        log.take(b"")
    assert len(log._secrets) == 64


def test_a_suite_that_the_kernel_lacks_is_openssl_s(ends: Ends) -> None:
    handshake = Handshake(ends, KeyLog(ends.server, frozenset()))
    handshake.greet()
    assert handshake.complete() is None
