"""The page of measured figures: one family is replaced, and the others stay."""

from __future__ import annotations

import importlib.util

from bench.performance import FAMILIES, page_of, section, sections


def test_a_family_is_replaced_and_the_others_stay_in_their_order() -> None:
    first, second = FAMILIES[0], FAMILIES[3]
    found = {second.name: section(second, "b 2\n", "today."), first.name: section(first, "a 1\n", "today.")}
    page = page_of(found)
    assert sections(page) == found
    assert page.index("a 1") < page.index("b 2")
    again = page_of({**sections(page), first.name: section(first, "a 3", "later.")})
    assert again == page.replace("today.\n\n```text\na 1", "later.\n\n```text\na 3")


def test_each_family_has_its_own_name_and_a_command_that_exists() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert importlib.util.find_spec(family.words[2]) is not None, family.name
