"""The steps of an examination. Each step has a time limit, and so does the whole examination.

A step that fails or takes too long is recorded as missing, and the next one continues. Once the common limit has
passed, each further step is only recorded.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from parley.protocol.errors import KafkaError
from parley.tools.cli.invocation import CommandError
from parley.tools.doctor.facts import Missing, Part

T = TypeVar("T")

STEP_S: Final = 10.0
LIMIT_S: Final = 120.0
_FAILURES: Final = (KafkaError, CommandError, OSError, TimeoutError, ValueError)


class Steps:
    """The steps of an examination. Create it in the event loop, because the common time limit starts then."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._end_s = asyncio.get_running_loop().time() + limit_s
        self._missing: list[Missing] = []

    @property
    def missing(self) -> Sequence[Missing]:
        """The parts that were not examined so far."""
        return tuple(self._missing)

    @property
    def left_s(self) -> float:
        """The time left until the common limit, in seconds."""
        return max(0.0, self._end_s - asyncio.get_running_loop().time())

    def note(self, part: Part, reason: object, *, has_failed: bool = True) -> None:
        """Record why a part is missing, once per part and reason. ``has_failed`` is False if the part does not exist,
        or was left out on purpose."""
        missing = Missing(part, str(reason) or type(reason).__name__, has_failed)
        if missing not in self._missing:
            self._missing.append(missing)

    async def step(self, part: Part, what: str, work: Awaitable[T], limit_s: float = STEP_S) -> T | None:
        """Await ``work`` within the limit. If it fails or takes too long, record that with ``what``, and return
        None."""
        try:
            async with asyncio.timeout(min(limit_s, self.left_s)):
                return await work
        except TimeoutError:
            self.note(part, f"{what}: {self.why_late(limit_s)}")
        except _FAILURES as error:
            self.note(part, f"{what}: {error}")
        return None

    def why_late(self, limit_s: float = STEP_S) -> str:
        """Return a sentence that says which of the limits has ended a step."""
        if not self.left_s:
            return f"not done within the {self._limit_s:g} s of --time-limit"
        return f"no response within {limit_s:g} s"


async def in_background(work: Callable[[], T]) -> T:
    """Run blocking work in a thread that does not delay the end of the process. Returns its result, or raises its
    error."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as error:
            failure = error
        with suppress(RuntimeError):  # the loop has ended: the caller did not wait
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=run, daemon=True, name="doctor").start()
    return await done
