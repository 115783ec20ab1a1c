"""Patterns match as Python's, in linear time, or they are refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.coordinators.transactions.id_pattern import PROGRAM_MAX, IdPattern
from parley.protocol.errors import ErrorCode, KafkaError

ATOMS = st.sampled_from(["a", "b", "-", ".", r"\d", r"\W", r"\.", "[ab]", "[^a]", "[a-c0-9]", r"[\d\-]", "[]a]"])
PATTERNS = st.recursive(
    ATOMS,
    lambda part: st.one_of(
        st.lists(part, max_size=3).map("".join),
        st.lists(part, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(part, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?"])).map(
            lambda each: f"(?:{each[0]}){each[1]}"
        ),
    ),
    max_leaves=8,
)


@given(PATTERNS, st.lists(st.text("abc1-.\n", max_size=6), max_size=10))
def test_patterns_match_as_pythons_do(pattern: str, texts: list[str]) -> None:
    ours, theirs = IdPattern(pattern), re.compile(pattern)
    for text in texts:
        assert ours.matches(text) is (theirs.fullmatch(text) is not None), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("", [""], ["a"]),
        ("^app-.*$", ["app-", "app-1"], ["app", "my-app-1"]),
        ("a|", ["a", ""], ["b"]),
        (r"\w+\s\S", ["ab_1 x"], ["ab"]),
        ("(a{0})", [""], ["a"]),
        ("ü[ä-ö]", ["üö"], ["u"]),
        (r"[\d_]", ["1", "_"], ["d", "\\"]),
    ],
)
def test_a_pattern_matches_whole_ids(pattern: str, matching: list[str], other: list[str]) -> None:
    compiled = IdPattern(pattern)
    assert all(map(compiled.matches, matching))
    assert not any(map(compiled.matches, other))


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)b",
        "[",
        "[a",
        "[b-a]",
        "[[:alpha:]]",
        "*",
        "a{",
        "a{x}",
        "a{3,1}",
        "a{1001}",
        "a{99999999999}",
        "((a{99}){99}){99}",
        "(?i)a",
        "(?=a)",
        r"\1",
        "\\",
        r"\pL",
        "a^",
        "a$b",
        "(" * 5000,
        "a" * (PROGRAM_MAX + 1),
    ],
)
def test_what_is_not_supported_is_an_error(pattern: str) -> None:
    with pytest.raises(KafkaError) as refused:
        IdPattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@given(st.text("ab()[]{}|*+?.^$\\-1,:", max_size=30))
def test_any_text_is_a_pattern_or_an_error(pattern: str) -> None:
    try:
        IdPattern(pattern).matches("ab1")
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_REGULAR_EXPRESSION:
            raise


@pytest.mark.parametrize("pattern", ["(a|a)*b", "(a*)*b", "(a?){50}a{50}", "(.*)*x", "((a+)+)+b"])
def test_patterns_that_would_make_python_backtrack_forever_are_matched_at_once(pattern: str) -> None:
    assert not IdPattern(pattern).matches("a" * 30_000 + "!")
