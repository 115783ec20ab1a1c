"""Parley on Spark's executors: the error if they lack it, and a zip of it for ``--py-files``.

A task reaches an executor as a pickle that names Parley's classes. An executor without Parley could only report ``No
module named 'parley'``. Therefore ``_restore``, which is sent by value and needs only Python, wraps the pickle. It
reports which module is missing on which host, and what to do.

``python -m parley.pipeline.spark.shipping parley.zip`` creates the zip. It contains only sources, and works without the
compiled modules. Parley's dependencies (docs/dependencies.md) must be installed on the executors.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, ParamSpec, TypeVar

_PACKAGES: Final = ("parley", "pyspark_parley")
_MISSING: Final = re.compile(r"ModuleNotFoundError: (.+)")

P = ParamSpec("P")
R = TypeVar("R")


def _restore(data: bytes) -> Any:
    """Unpack the pickle. Raises ModuleNotFoundError with a message that says what to do."""
    import pickle
    import socket
    import sys

    try:
        make, arguments = pickle.loads(data)
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"the Python of the executor on {socket.gethostname()} ({sys.executable}) has no module {missing.name!r}."
            " Install Parley with the extra 'spark' on all machines of the cluster, or send it with the job: a packed"
            " environment (spark.archives), or a zip (--py-files) if the executors have what Parley needs. How:"
            " docs/pipeline.md, 'Executors without Parley'",
            name=missing.name,
        ) from None
    return make(*arguments)


_restore.__module__ = "__main__"  # so that cloudpickle sends the code instead of the name


def _packed(make: Callable[..., Any], *arguments: Any) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
    from pyspark import cloudpickle

    return _restore, (cloudpickle.dumps((make, arguments)),)


class Travels:
    """Base class of objects that Spark sends to executors. Subclasses must not have slots."""

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _packed(_object, type(self), self.__dict__)


def _object(kind: type[Travels], attributes: dict[str, Any]) -> Travels:
    made = kind.__new__(kind)
    made.__dict__.update(attributes)
    return made


class Shipped(Generic[P, R]):
    """A function to be called by Spark's tasks, in a form that can be sent to executors."""

    def __init__(self, work: Callable[P, R]) -> None:
        self._work = work

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self._work(*arguments, **named)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _packed(Shipped, self._work)


def missing_module(error: BaseException) -> str | None:
    """Return the message about a missing module in the text of Spark's error; None for any other error."""
    found = _MISSING.search(f"{error}")
    return None if found is None else found[1].strip()


def package_zip(path: Path) -> Path:
    """Write Parley's sources into a zip from which Python can import them. Returns ``path``. Raises OSError."""
    root = Path(__file__).parents[3]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in _PACKAGES:
            for file in sorted((root / package).rglob("*")):
                if file.is_file() and file.suffix not in (".so", ".pyc") and file.name != "_built.json":
                    packed.write(file, file.relative_to(root))
    return path


if __name__ == "__main__":
    print(package_zip(Path(sys.argv[1] if len(sys.argv) > 1 else "parley.zip")))
