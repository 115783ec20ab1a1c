"""How a command repeats a request while the cluster is not ready."""

from __future__ import annotations

import asyncio
import socketserver
import threading
from pathlib import Path

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from parley.tools.cli import cluster_client
from parley.tools.cli.cluster_client import on_cluster, until_ready, why_refused
from parley.tools.cli.common_options import warn_ignored
from parley.tools.cli.invocation import CommandError


async def responses(*codes: ErrorCode) -> list[ErrorCode]:
    """Return the codes of the responses that the command receives until it stops asking."""
    waiting, received = list(codes), []

    async def ask() -> ErrorCode:
        received.append(waiting.pop(0))
        return received[-1]

    await until_ready(ask, int, 60_000)
    return received


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_client, "_PAUSE_S", 0)


async def test_a_request_is_repeated_while_the_cluster_is_not_ready() -> None:
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await responses(loading, loading, ErrorCode.NONE) == [loading, loading, ErrorCode.NONE]


async def test_a_request_for_which_the_broker_has_waited_is_not_repeated() -> None:
    assert await responses(ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE) == [ErrorCode.REQUEST_TIMED_OUT]


@pytest.mark.parametrize(
    ("reply", "advice"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP, not Kafka's protocol"),
        (b"<!DOCTYPE HTML>\n<html>", "speaks HTTP, not Kafka's protocol"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "needs TLS or a login, set security.protocol"),
    ],
)
def test_a_port_of_another_protocol_is_called_so(reply: bytes, advice: str) -> None:
    class Replies(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(reply)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Replies) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        with pytest.raises(CommandError, match=advice):
            on_cluster(address, None, lambda client: client.metadata())
        assert advice in asyncio.run(why_refused(address, {}))
        server.shutdown()


def test_a_misspelled_setting_of_a_client_is_recognized(capsys: pytest.CaptureFixture[str]) -> None:
    warn_ignored(["sasl.mechanisms", "bootstrap.server", "acks", "config.providers", "wholly.unknown"])
    assert capsys.readouterr().err == (
        "Warning: these client settings have no effect here: acks, bootstrap.server (did you mean bootstrap.servers?), "
        "sasl.mechanisms (did you mean sasl.mechanism?), wholly.unknown.\n"
    )


def test_a_misspelled_security_setting_in_a_file_is_recognized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("ssl.trustore.location", "sasl.mechanisim", "sasl.oauthbearer.jwks.endpoint.url", "ssl.provider")
    lines = [f"{name}=x" for name in names]
    path = tmp_path / "client.properties"
    path.write_text("\n".join(["security.protocol=SASL_PLAINTEXT", *lines]))
    with pytest.raises(CommandError, match=r"sasl.mechanism is not set .did you mean it by sasl.mechanisim"):
        on_cluster("127.0.0.1:1", path, lambda client: client.metadata())
    assert capsys.readouterr().err == (
        "Warning: these client settings have no effect here: sasl.mechanisim (did you mean sasl.mechanism?), "
        "ssl.provider, ssl.trustore.location (did you mean ssl.truststore.location?).\n"
    )


async def test_an_error_that_is_raised_is_final_unless_it_is_temporary() -> None:
    codes = [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]

    async def ask() -> int:
        raise KafkaError(codes.pop(0))

    with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
        await until_ready(ask, int, 60_000)
    assert codes == [ErrorCode.NONE]
