"""Every line that the code logs with the level warning or error has a row that explains it."""

from __future__ import annotations

import re
from pathlib import Path

from parley.broker.docs.log_lines.page import SECTIONS, log_lines_page
from parley.broker.docs.log_lines.source import logged_lines

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_every_line_has_a_row_and_every_row_a_line() -> None:
    rows = [line.event for section in SECTIONS for line in section.lines]
    logged = {line.event: line.place for line in logged_lines()}
    assert sorted(set(rows)) == sorted(rows), "an event has two rows"
    missing = [f"{place} logs {event!r}" for event, place in logged.items() if event not in rows]
    assert not missing, "add rows to parley/broker/docs/log_lines/:\n" + "\n".join(missing)
    assert set(rows) - logged.keys() == set(), "these lines are not in the code any more"


def test_an_operator_can_search_for_every_line() -> None:
    assert [line for line in logged_lines() if not re.search("[a-z]{3,}", line.event)] == []


def test_rows_lead_to_sections_that_exist() -> None:
    for page, anchor in re.findall(r"\]\((\S+?\.md)(?:#(\S+?))?\)", log_lines_page()):
        headings = re.findall(r"^#+ (.*)$", (DOCS / page).read_text(), re.MULTILINE)
        anchors = {re.sub("[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert not anchor or anchor in anchors, f"{page}#{anchor}"
