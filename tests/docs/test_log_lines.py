"""Every warning and error that the code logs has a row that explains it, and each row refers only to what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parley.broker.docs.log_lines.page import SECTIONS, log_lines_page
from parley.broker.docs.log_lines.source import logged_lines

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.slow
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


@pytest.mark.parametrize("page", ["log-lines.md", "monitoring.md", "operations.md", "procedures.md"])
def test_commands_on_operators_pages_have_the_options_shown(page: str) -> None:
    reference = (DOCS / "tools.md").read_text()
    for words in re.findall(r"`parley ([^`]*)`", (DOCS / page).read_text()):
        command = words.split()[0]
        section = reference.partition(f"\n## parley {command}\n")[2].partition("\n## ")[0]
        assert section, f"{page}: parley {command} does not exist"
        missing = [option for option in re.findall(r"--[a-z-]+", words) if option not in section]
        assert not missing, f"{page}: parley {words}"
