"""The errors of Connect.

A task raises ``RetriableError`` if the call may succeed later: after a pause, the runtime calls ``poll`` again, or
repeats ``put`` with the same records. Any other exception of ``poll`` or ``put`` fails the task until the operator
restarts it. Exceptions of ``pre_commit`` are only logged. Failures of converters and transforms follow
``errors.retry.timeout`` and ``errors.tolerance``. ``DataError`` and ``ConfigError`` tell the operator whether a value
or the configuration is at fault. The names follow Kafka Connect's exceptions.
"""

from __future__ import annotations

from collections.abc import Sequence

from parley.pipeline.service.errors import ServiceError


class ConnectError(ServiceError):
    """Raised if a connector or the runtime cannot continue. The message says why, and what to do."""


class RetriableError(ConnectError):
    """Raised if a call failed, but may succeed later without any change."""


class DataError(ConnectError):
    """Raised if a value does not fit its schema, or if a converter does not accept the bytes."""


class ConfigError(ConnectError):
    """Raised if the configuration is invalid. ``messages`` are all problems of one key, or of the whole
    configuration.
    """

    def __init__(self, *messages: str) -> None:
        super().__init__("; ".join(messages))
        self.messages: Sequence[str] = messages


def stack_trace(error: BaseException) -> str:
    """Return the full stack trace of an error, for the ``trace`` field of a status."""
    import traceback

    return "".join(traceback.format_exception(error))
