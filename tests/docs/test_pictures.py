"""Every picture of the documentation is made by a program of this repository, and drawings are up to date."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from xml.etree import ElementTree

import pytest

from website.pictures.table import DOCS, DRAWN, ELSEWHERE, MEASURED, RECORDED
from website.pictures.terminal import COLUMNS, PAUSE_MAX_S, ROWS, Line, moving_picture

ROOT = Path(__file__).resolve().parents[2]
PICTURES = sorted(path.name for kind in ("svg", "png", "jpg", "gif", "webp") for path in DOCS.rglob(f"*.{kind}"))
SVG = "{http://www.w3.org/2000/svg}"


def test_a_program_makes_each_picture() -> None:
    made = [*DRAWN, *RECORDED, *ELSEWHERE]
    assert [name for name in PICTURES if not any(fnmatch(name, each) for each in [*made, *MEASURED])] == []
    assert [each for each in made if not any(fnmatch(name, each) for name in PICTURES)] == []


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawing_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text() == DRAWN[name](), "run `make pictures`"


def test_the_other_programs_write_these_pictures() -> None:
    browser = (ROOT / ELSEWHERE["console-*.png"]).read_text()
    written = set(re.findall(r'picture\(page, "([\w-]+)"\)', browser))
    assert {name for name in PICTURES if name.startswith("console-")} == {f"console-{name}.png" for name in written}
    assert ElementTree.parse(DOCS / "example-orders.svg").getroot().tag == f"{SVG}svg"
    assert (ROOT / ELSEWHERE["example-orders.svg"]).exists()


def test_each_page_describes_its_pictures_for_readers_who_do_not_see_them() -> None:
    shown = dict[str, str]()
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
        shown |= {Path(name).name: text for text, name in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text())}
    assert set(shown) == set(PICTURES)
    assert [name for name, text in shown.items() if len(text.split()) < 4] == []


def test_the_recorded_quickstart_lost_nothing() -> None:
    texts = ["".join(each.itertext()) for each in ElementTree.parse(DOCS / "quickstart.svg").iter(f"{SVG}text")]
    assert any(text.startswith("$ kill -9") for text in texts)
    assert "No line is missing, duplicated or out of order." in texts[-1]


def test_a_terminal_shows_lines_when_they_were_printed_and_rolls() -> None:
    printed = [Line(0.0, "$ first"), Line(0.5, "x" * (COLUMNS + 1)), *[Line(100.0, f"line {n}") for n in range(ROWS)]]
    root = ElementTree.fromstring(moving_picture("a & b", printed))
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert texts[:4] == ["a & b", "$ first", "x" * COLUMNS, "x"]
    assert texts[-1] == f"line {ROWS - 1}"
    style = root.findtext(f"{SVG}style") or ""
    steps = [float(at) for at in re.findall(r"@keyframes s\d+ { 0% { opacity: 0; } ([\d.]+)%, 100%", style)]
    assert steps == sorted(steps)
    total = float(re.findall(r"animation: ([\d.]+)s", style)[0])
    assert total < PAUSE_MAX_S + 100 * 0.2  # the wait of 99.5 s is cut
    assert style.count("translateY") >= 3
