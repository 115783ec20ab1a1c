"""Java's properties files, as Java reads them (``test_against_kafka.py`` compares them with Java itself)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.configuration.properties import parse_properties, read_properties


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a = 1 \n", {"a": "1 "}),
        ("a:1\nb 2\nc\t=\t3", {"a": "1", "b": "2", "c": "3"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=1", {"": "1"}),
        ("a==1", {"a": "=1"}),
        ("a = = 1", {"a": "= 1"}),
        ("# a=1\n  ! b=2\n\n \t\nc=3", {"c": "3"}),
        ("a=1 # not a comment", {"a": "1 # not a comment"}),
        ("a=1\\\n   ,2\\\n\t,3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n# 2", {"a": "1# 2"}),
        ("# a\\\nb=2", {"b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a\\=b\\ c\\:d=1", {"a=b c:d": "1"}),
        ("a=\\t\\n\\r\\f\\\\\\q", {"a": "\t\n\r\f\\q"}),
        ("a=\\u00e4\\u4E2D", {"a": "ä中"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=ä中", {"a": "ä中"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("sasl.jaas.config=x required \\\n  username=\"u\" \\\n  password=\"p\";", {
            "sasl.jaas.config": 'x required username="u" password="p";'
        }),
    ],
)  # fmt: skip
def test_reads_what_java_reads(text: str, entries: dict[str, str]) -> None:
    assert parse_properties(text) == entries


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u", "a=\\uzzzz", "\\u00g0=1"])
def test_refuses_half_an_escape(text: str) -> None:
    with pytest.raises(ValueError, match="four hexadecimal digits"):
        parse_properties(text)


def _escape(text: str) -> str:
    return "".join(f"\\u{unit:04x}" for char in text for unit in _utf16(char))


def _utf16(char: str) -> tuple[int, ...]:
    raw = char.encode("utf-16-be")
    return tuple(int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2))


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8"))))
def test_escaped_entries_come_back(entries: dict[str, str]) -> None:
    text = "\n".join(f"{_escape(key)}={_escape(value)}" for key, value in entries.items())
    assert parse_properties(text) == entries


@given(st.text())
def test_any_text_gives_entries_or_an_error(text: str) -> None:
    try:
        entries = parse_properties(text)
    except ValueError:
        return
    assert all(isinstance(value, str) for value in entries.values())


def test_names_the_file_that_is_wrong(tmp_path: Path) -> None:
    bad = tmp_path / "server.properties"
    bad.write_text("a=\\u12")
    with pytest.raises(ValueError, match=r"server\.properties"):
        read_properties(bad)
    bad.write_bytes(b"a=\xff")
    with pytest.raises(ValueError, match=r"server\.properties"):
        read_properties(bad)
    bad.write_text("a=1\n", encoding="utf-8")
    assert read_properties(bad) == {"a": "1"}
