"""The page of measured figures: replacing one family keeps the others, and a failing broker does not stop the
others."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import performance
from bench.figures import FIGURES_FILE, Figures, Found, report, table
from bench.performance import DOCS, FAMILIES, PAGE, figures_of, measure, page_of, picture_name, section, sections
from bench.pictures import advantage, rows_of
from bench.turns import in_turns


class Broker:
    """A broker of which nothing but its name and its end is of interest."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self._log = log

    def start(self) -> float:
        self._log.append(f"start {self.name}")
        return 0.0

    def stop(self) -> None:
        self._log.append(f"stop {self.name}")


def test_a_family_is_replaced_and_the_others_stay_in_their_order() -> None:
    first, second = FAMILIES[0], FAMILIES[3]
    found = {second.name: section(second, "beta 2\n", "today."), first.name: section(first, "alpha 1\n", "today.")}
    page = page_of(found)
    assert sections(page) == found
    assert page.index("alpha 1") < page.index("beta 2")
    again = page_of({**sections(page), first.name: section(first, "alpha 3", "later.")})
    assert again == page.replace("today.\n\n```text\nalpha 1", "later.\n\n```text\nalpha 3")


def test_each_family_has_its_own_name_and_a_command_that_exists() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert importlib.util.find_spec(family.words[2]) is not None, family.name


def test_the_page_and_its_pictures_are_what_the_program_writes() -> None:
    found = sections(PAGE.read_text())
    assert page_of(found) == PAGE.read_text()
    assert {path.name for path in DOCS.glob("performance-*.svg")} == {picture_name(each) for each in figures_of(found)}


def test_a_broker_that_fails_is_stopped_named_and_left_out_later() -> None:
    log: list[str] = []

    def measured(broker: Broker, figures: Figures) -> None:
        if broker.name == "bad":
            raise SystemExit("no such API")
        figures["requests/s", broker.name].append(7)

    kinds = [lambda folder: Broker("bad", log), lambda folder: Broker("Parley", log)]
    found = in_turns(kinds, 2, measured)
    assert log == ["start bad", "stop bad", *(["start Parley", "stop Parley"] * 2)]
    assert found.failures == {"bad": "round 1: SystemExit: no such API"}
    assert found.figures == {("requests/s", "Parley"): [7, 7]}


def test_the_report_has_medians_ratios_and_failures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = Found(
        {("a", "Kafka"): [8, 4, 6], ("a", "Parley"): [3.0], ("b", "Tansu"): []}, {"Tansu": "round 1: it did not start"}
    )
    monkeypatch.setenv(FIGURES_FILE, str(tmp_path / "figures.json"))
    report(found)
    printed = capsys.readouterr().out
    assert table(found.figures).split() == ["Parley", "Kafka", "ratio", "a", "3", "6", "0.50"]
    assert "Tansu failed: round 1: it did not start" in printed
    assert "a: Kafka: 8, 4, 6" in printed
    assert json.loads((tmp_path / "figures.json").read_text()) == {"a": {"Kafka": 6, "Parley": 3}}


def test_a_family_that_fails_keeps_its_section(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(performance, "PAGE", tmp_path / "performance.md")
    family = performance.Family("load", "Records", "Produce", "bench.figures", "")
    assert measure(family, tiny=False) == "it has no figures"
    assert measure(performance.Family("load", "Records", "Produce", "bench.absent", ""), tiny=False) == "exit code 1"
    assert not (tmp_path / "performance.md").exists()


def test_interpreted_modules_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(performance, "status", lambda: {"parley.storage.appending": "interpreted"})
    with pytest.raises(SystemExit):
        performance.main(["load"])
    assert "make build" in capsys.readouterr().err


def test_an_advantage_depends_on_what_is_better() -> None:
    assert advantage("produce: records/s", 200, 100) == 2
    assert advantage("handshakes: per broker CPU s", 100, 200) == 0.5
    assert advantage("read: k rows per CPU s", 200, 100) == 2
    assert advantage("produce: broker CPU s/GB", 200, 100) == 0.5
    assert advantage("p99 ms", 1, 1000) == 100
    assert advantage("rules broken by that", 0, 0) is None
    medians = {"x ms": {"Parley": 1.0, "Kafka": 2.0}, "y": {"Parley": 1.0}}
    assert rows_of({"Title": medians, "Nothing to compare": {"y": {"Parley": 1.0}}}) == [
        ("Title", {}),
        ("x ms", {"Kafka": 2.0}),
    ]


@pytest.mark.slow
def test_a_picture_shows_each_figure() -> None:
    pytest.importorskip("matplotlib")
    from bench.pictures import picture

    text = picture("Records", {"Produce": {"x ms": {"Parley": 1.0, "Kafka": 2.0, "kfake": 0.5}}})
    words = {
        "".join(each.itertext()).strip() for each in ElementTree.fromstring(text).iter() if each.tag.endswith("text")
    }
    assert {"Produce", "x ms", "Kafka", "kfake"} <= words
