"""Kafka's kept answers: when Kafka is asked again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import kafka_answers
from tests.support.kafka_answers import compare_with_kafka, computed_by_kafka


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kafka_answers, "ROOT", tmp_path)
    monkeypatch.setattr(kafka_answers, "FOLDER", tmp_path / "answers")
    monkeypatch.setattr(kafka_answers, "CLIENT", ())
    path = tmp_path / "script.py"
    path.write_text("1")
    return path


def is_asked(script: Path, *, kafkas: int, ours: int, label: str = "") -> bool:
    """Compare our answer with Kafka's. Returns whether Kafka was asked."""
    asked = []

    def ask() -> int:
        asked.append(True)
        return kafkas

    compare_with_kafka(ask, equals(ours), script=[script], label=label)
    return bool(asked)


def equals(ours: int) -> Callable[[int], None]:
    def check(theirs: int) -> None:
        assert ours == theirs

    return check


def test_kafka_is_asked_once_for_each_script(script: Path) -> None:
    assert is_asked(script, kafkas=1, ours=1)
    assert not is_asked(script, kafkas=1, ours=1)
    assert is_asked(script, kafkas=1, ours=1, label="other seeds")
    script.write_text("2")
    assert is_asked(script, kafkas=1, ours=1)


def test_a_file_of_the_client_is_part_of_the_script(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = script.parent / "client"
    (client / "messages").mkdir(parents=True)
    monkeypatch.setattr(kafka_answers, "CLIENT", (client,))
    assert is_asked(script, kafkas=1, ours=1)
    (client / "messages" / "new.py").write_text("")
    assert is_asked(script, kafkas=1, ours=1)
    assert not is_asked(script, kafkas=1, ours=1)


def test_kafka_is_asked_again_before_a_difference_fails_a_test(script: Path) -> None:
    assert is_asked(script, kafkas=1, ours=1)
    assert is_asked(script, kafkas=2, ours=2)
    assert not is_asked(script, kafkas=2, ours=2)
    with pytest.raises(AssertionError):
        is_asked(script, kafkas=2, ours=3)


def test_answers_that_differ_are_not_kept(script: Path) -> None:
    with pytest.raises(AssertionError):
        is_asked(script, kafkas=1, ours=2)
    assert is_asked(script, kafkas=1, ours=1)


def test_a_program_runs_once_for_the_same_question(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, ...]] = []

    def run_java(_program: str, *args: str, **given: object) -> str:
        runs.append((*args, *map(str, given.values())))
        return f"{runs}"

    monkeypatch.setattr(kafka_answers, "run_java", run_java)
    first = computed_by_kafka(script, "a", version="1", stdin="x")
    assert computed_by_kafka(script, "a", version="1", stdin="x") == first
    computed_by_kafka(script, "b", version="1", stdin="x")
    computed_by_kafka(script, "a", version="2", stdin="x")
    computed_by_kafka(script, "a", version="1", stdin="y")
    script.write_text("2")
    computed_by_kafka(script, "a", version="1", stdin="x")
    assert len(runs) == 5
