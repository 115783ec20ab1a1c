"""What Apache Kafka answered, kept between runs.

Each run of the tests runs Parley's code. It asks Kafka again only if something may have changed Kafka's answers.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tests.support.kafka import KAFKA_4, ROOT, run_java

FOLDER = ROOT / ".cache" / "kafka-answers"
CLIENT = (ROOT / "parley" / "protocol", *(ROOT / "tests" / each for each in ("support/kafka.py", "system/patience.py")))
"""The client, which imports nothing else of Parley (a contract of import-linter), and what runs Kafka."""

AnswersT = TypeVar("AnswersT")


def compare_with_kafka(
    ask: Callable[[], AnswersT],
    check: Callable[[AnswersT], None],
    *,
    script: Iterable[Path],
    label: str = "",
) -> None:
    """Call ``check`` with a broker's answers to a fixed script of requests, which ``ask`` returns from Apache Kafka. It
    raises AssertionError if ours differ.

    Answers that it accepted are kept, until the script, the client or Kafka changes. A test that fails has always asked
    Kafka. ``script`` are the files and folders of the script, and ``label`` names this one
    of several scripts in them.
    """
    kept = FOLDER / f"{_key([*script, *CLIENT], label)}.pickle"
    if kept.exists():
        with suppress(AssertionError):  # Kafka's own word counts
            check(pickle.loads(kept.read_bytes()))
            return
    answers = ask()
    check(answers)
    _keep(kept, answers)


def computed_by_kafka(
    program: Path, *args: str, version: str = KAFKA_4, stdin: str = "", timeout_s: float = 120
) -> str:
    """Return what a Java program prints whose output depends on Kafka's classes, ``args`` and ``stdin`` only.

    Raises the same errors as ``run_java``.
    """
    digest = hashlib.sha256(repr((program.read_text(), version, args, stdin)).encode()).hexdigest()
    kept = FOLDER / f"{program.stem}-{digest[:32]}.pickle"
    if kept.exists():
        return str(pickle.loads(kept.read_bytes()))
    printed = run_java(str(program), *args, version=version, stdin=stdin, timeout_s=timeout_s)
    _keep(kept, printed)
    return printed


def _keep(path: Path, answers: object) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(f".{os.getpid()}")
    made.write_bytes(pickle.dumps(answers))
    made.rename(path)


def _key(places: Iterable[Path], label: str) -> str:
    digest = hashlib.sha256(label.encode())
    for place in places:
        for source in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(f"{source.relative_to(ROOT)}\n".encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:32]
