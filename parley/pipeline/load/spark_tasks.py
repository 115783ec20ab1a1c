"""Runs tasks in Spark, and reports their errors in plain words.

An exception of a task would reach the driver as a page of Java text. Therefore expected errors are caught in the task
and raised in the driver as ``TaskFailed``. Spark handles all other errors, and retries the task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from parley.pipeline.load.columns import BadRecord
from parley.pipeline.load.files import NotOurs
from parley.pipeline.mirror.appending import Overtaken
from parley.pipeline.spark.shipping import Shipped, missing_module
from parley.protocol.errors import KafkaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


class TaskFailed(Exception):
    """Raised if a task has failed. The message says why."""


def run_tasks(session: SparkSession, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Run ``work`` for each task on Spark, and return the results in order. Raises TaskFailed for an expected error,
    and Spark's error for any other.
    """
    from py4j.protocol import Py4JJavaError

    sent = session.sparkContext.parallelize(tasks, len(tasks)).map(Shipped(partial(_result_or_failure, work)))
    try:
        results: list[R | TaskFailed] = sent.collect()
    except Py4JJavaError as error:
        if (message := missing_module(error)) is not None:
            raise TaskFailed(message) from error
        raise
    found: list[R] = []
    for one in results:
        if isinstance(one, TaskFailed):
            raise one
        found.append(one)
    return found


def _result_or_failure(work: Callable[[T], R], task: T) -> R | TaskFailed:
    try:
        return work(task)
    except KafkaError as error:
        return TaskFailed(f"{error.code.name}: {error.message}")
    except (BadRecord, NotOurs, Overtaken, OSError) as error:
        return TaskFailed(str(error))
