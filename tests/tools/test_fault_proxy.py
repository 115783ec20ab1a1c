"""``FaultProxy``: forwarding, cutting and breaking connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from parley.tools.fault_proxy import FaultProxy


@pytest.fixture
def echo() -> Iterator[int]:
    """Yield a server that sends back the data it receives."""

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(100):
                    connection.sendall(data)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]


def test_forwards_cuts_and_breaks_connections(echo: int) -> None:
    with FaultProxy("127.0.0.1", echo) as link:
        with socket.create_connection(("127.0.0.1", link.port), timeout=10) as client:
            client.sendall(b"one")
            assert client.recv(100) == b"one"
            link.cut()
            client.sendall(b"two")
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(100)
            link.restore()
            client.settimeout(10)
            with pytest.raises(ConnectionResetError):
                client.recv(100)
        with socket.create_connection(("127.0.0.1", link.port), timeout=10) as client:
            client.sendall(b"three")
            assert client.recv(100) == b"three"
            link.break_all()
            with pytest.raises(ConnectionResetError):
                client.recv(100)
    with pytest.raises(RuntimeError, match="with block"):
        _ = link.port
