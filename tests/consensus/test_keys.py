from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.consensus.keys import check_key, segment, text_of


@pytest.mark.parametrize("key", ["a", "a/b", "a/b/c", "...", "a/...", "@:=+,-_~%", "x" * 500])
def test_legal_keys(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize("key", ["", "/", "/a", "a/", "a//b", ".", "..", "a/./b", "a/..", "a b", "a\n", "é", "a\x7f"])
def test_illegal_keys(key: str) -> None:
    with pytest.raises(ValueError, match="is not a valid key"):
        check_key(key)


@given(st.text())
def test_any_text_is_a_segment_and_comes_back(text: str) -> None:
    escaped = segment(text)
    check_key(escaped)
    assert "/" not in escaped
    assert text_of(escaped) == text


def test_plain_names_stay_readable() -> None:
    assert segment("my.topic-1_a") == "my.topic-1_a"
    assert segment("User:CN=a,O=b/c") == "User:CN=a,O=b%2Fc"
    assert segment("..") == "%2E%2E"
    assert segment("") == "%"
