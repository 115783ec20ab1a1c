"""What Apache Kafka answered to a fixed script of requests, kept between runs.

Our broker answers anew each time. Kafka answers again only if something may change its answers: the script, the client
that runs it, or Kafka. A test that fails has always asked Kafka.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tests.support.kafka import ROOT

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
    """Call ``check`` with Kafka's answers, which ``ask`` returns. It raises AssertionError if ours differ.

    Answers that it accepted are kept. ``script`` are the files and folders of the script, and ``label`` names this one
    of several scripts in them.
    """
    kept = FOLDER / f"{_key([*script, *CLIENT], label)}.pickle"
    if kept.exists():
        with suppress(AssertionError):  # Kafka's own word counts
            check(pickle.loads(kept.read_bytes()))
            return
    answers = ask()
    check(answers)
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = kept.with_suffix(f".{os.getpid()}")
    made.write_bytes(pickle.dumps(answers))
    made.rename(kept)


def _key(places: Iterable[Path], label: str) -> str:
    digest = hashlib.sha256(label.encode())
    for place in places:
        for source in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(f"{source.relative_to(ROOT)}\n".encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:32]
