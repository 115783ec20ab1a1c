"""A test that hangs ends at its time limit, and says what it waited for."""

from __future__ import annotations

import asyncio
import gc
from typing import NoReturn

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from tests.support.virtual_time import run
from tests.system.patience import WAIT_S, until


@pytest.mark.slow
@pytest.mark.timeout(0.3)
def test_the_limit_of_a_test_ends_the_event_loop_from_any_task(caplog: pytest.LogCaptureFixture) -> None:
    async def busy() -> NoReturn:
        while True:
            pass

    async def hang() -> None:
        task = asyncio.create_task(busy())
        await asyncio.Event().wait()
        task.cancel()

    with pytest.raises(SystemExit, match="Timeout"):
        asyncio.run(hang())
    gc.collect()
    assert not caplog.records


def test_a_request_that_gets_no_final_response_is_named_with_the_last_one() -> None:
    async def respond() -> str:
        return "not yet"

    async def hang() -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    async def fail() -> NoReturn:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no response")

    for ask, last in ((respond, "not yet"), (hang, None), (fail, None)):
        with pytest.raises(AssertionError, match=f"id-7: EndTxn: no final response within {WAIT_S} s.*{last}"):
            run(until(lambda response: response == "done", ask, who="id-7: EndTxn"))
