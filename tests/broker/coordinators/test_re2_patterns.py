"""Clients' regular expressions use RE2 and are matched in linear time; other expressions are rejected."""

from __future__ import annotations

import pytest

from parley.broker.coordinators.re2_patterns import REGEX_MAX, compiled
from parley.protocol.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    "regex", ["(", "*", "a{1001}", "((a{99}){99}){99}", "(?=a)", r"(a)\1", "\\", "a" * (REGEX_MAX + 1)]
)
def test_an_expression_that_is_invalid_or_too_large_is_an_error(regex: str) -> None:
    with pytest.raises(KafkaError, match="Field ") as refused:
        compiled(regex, "Field")
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("regex", ["(a|a)*b", "(a*)*b", "(a?){50}a{50}", "(.*)*x", "((a+)+)+b"])
def test_an_expression_that_would_make_python_backtrack_forever_is_matched_at_once(regex: str) -> None:
    assert compiled(regex, "Field").fullmatch("a" * 30_000 + "!") is None


def test_groups_capture_nothing_because_captures_make_a_match_slow() -> None:
    found = compiled("(" * 900 + ".*" + ")" * 900, "Field")
    assert found.groups == 0
    assert found.fullmatch("topic") is not None
