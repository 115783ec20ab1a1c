"""How a command repeats a request while the cluster is not ready."""

from __future__ import annotations

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from parley.tools.cli import cluster_client
from parley.tools.cli.cluster_client import until_ready


async def responses(*codes: ErrorCode) -> list[ErrorCode]:
    """The codes of the responses that the command receives until it stops asking."""
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


async def test_an_error_that_is_raised_is_final_unless_it_is_temporary() -> None:
    codes = [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]

    async def ask() -> int:
        raise KafkaError(codes.pop(0))

    with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
        await until_ready(ask, int, 60_000)
    assert codes == [ErrorCode.NONE]
