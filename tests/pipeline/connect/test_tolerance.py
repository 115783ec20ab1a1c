"""The handling of failed steps: retried, skipped, or the end of the task (KIP-298)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import pytest

from parley.pipeline.connect.connector_config import SINK
from parley.pipeline.connect.errors import ConnectError, DataError, RetriableError
from parley.pipeline.connect.herder_results import TaskId
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.tasks.tolerance import LeftOut, Raw, Stage, Tolerance

RAW = Raw("t", 2, 7, 99, 0, b"k", b"v", ())


class Step:
    """Fails this many times, then returns; `times` is the number of calls."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.times = 0
        self._failures = failures
        self._error = error

    def __call__(self) -> str:
        self.times += 1
        if self.times <= self._failures:
            raise self._error
        return "done"


class Letters:
    def __init__(self) -> None:
        self.sent: list[tuple[Raw, Mapping[str, str]]] = []

    def send(self, raw: Raw, context: Mapping[str, str]) -> None:
        self.sent.append((raw, context))


class Clock(threading.Event):
    """A clock that advances only during pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        return self.is_set()

    def now_ms(self) -> int:
        return round(1000 * sum(self.pauses))


def tolerance(clock: Clock, letters: Letters | None = None, **config: object) -> Tolerance:
    given = {"name": "c", "connector.class": "x"} | {key.replace("_", "."): str(one) for key, one in config.items()}
    return Tolerance(
        TaskId("c", 0), SINK.parse(given), None if letters is None else letters.send, clock, now_ms=clock.now_ms
    )


def test_retriable_errors_are_retried_with_growing_pauses() -> None:
    clock, step = Clock(), Step(4, RetriableError("busy"))
    run = tolerance(clock, errors_retry_timeout=10_000, errors_retry_delay_max_ms=1000)
    assert run.run(Stage.TRANSFORMATION, step, step, RAW) == "done"
    assert clock.pauses == [0.3, 0.6, 1.0, 1.0]


@pytest.mark.parametrize(("timeout_ms", "times"), [(0, 1), (1000, 4), (-1, 6)])
def test_it_is_tried_again_for_the_time_that_is_configured(timeout_ms: int, times: int) -> None:
    clock, step = Clock(), Step(5, RetriableError("busy"))
    run = tolerance(clock, errors_retry_timeout=timeout_ms, errors_retry_delay_max_ms=400)
    if timeout_ms < 0:
        assert run.run(Stage.VALUE_CONVERTER, step, step, RAW) == "done"
    else:
        with pytest.raises(ConnectError, match="Tolerance exceeded"):
            run.run(Stage.VALUE_CONVERTER, step, step, RAW)
    assert step.times == times


def test_a_task_that_is_stopped_waits_no_longer() -> None:
    clock, step = Clock(), Step(1000, RetriableError("busy"))
    clock.set()
    with pytest.raises(ConnectError):
        tolerance(clock, errors_retry_timeout=-1).run(Stage.KEY_CONVERTER, step, step, RAW)
    assert step.times == 1


def test_a_failing_record_is_skipped_if_errors_are_tolerated(caplog: pytest.LogCaptureFixture) -> None:
    clock, letters, step = Clock(), Letters(), Step(1, DataError("odd"))
    run = tolerance(
        clock, letters, errors_tolerance="all", errors_log_enable="true", errors_log_include_messages="true"
    )
    with caplog.at_level(logging.ERROR), pytest.raises(LeftOut):
        run.run(Stage.KEY_CONVERTER, step, step, RAW)
    [(raw, context)] = letters.sent
    assert (raw, context["stage"], context["exception.message"]) == (RAW, "KEY_CONVERTER", "odd")
    assert "topic='t', partition=2, offset=7, timestamp=99" in caplog.text
    assert clock.pauses == []


@pytest.mark.parametrize(
    ("of", "error", "names"),
    [
        ("Cast$Key", DataError("x"), ("transforms.Cast$Key", "errors.DataException")),
        ("RegexRouter", ConnectError("x"), ("transforms.RegexRouter", "errors.ConnectException")),
        ("StringConverter", RetriableError("x"), ("storage.StringConverter", "errors.RetriableException")),
    ],
)
def test_classes_have_kafkas_names(of: str, error: Exception, names: tuple[str, str]) -> None:
    letters = Letters()
    made = Plugins().make(of, object)
    tolerance(Clock(), letters, errors_tolerance="all").failed(Stage.TRANSFORMATION, made, error, RAW)
    [(_, context)] = letters.sent
    found = (context["class.name"], context["exception.class.name"])
    assert found == tuple(f"org.apache.kafka.connect.{name}" for name in names)


def test_a_class_of_ones_own_is_named_by_where_it_is() -> None:
    letters = Letters()
    tolerance(Clock(), letters, errors_tolerance="all").failed(Stage.TASK_PUT, Step(0, ValueError()), ValueError(), RAW)
    [(_, context)] = letters.sent
    assert context["class.name"] == f"{__name__}.Step"
    assert context["exception.class.name"] == "builtins.ValueError"
