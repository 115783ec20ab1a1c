"""Java's ``.properties`` files, the format of ``server.properties``.

A line is ``key=value``, ``key: value`` or ``key value``; blanks around the separator are ignored. ``#`` or ``!`` starts
a comment line. A line that ends in an odd number of backslashes continues on the next line, whose leading blanks are
ignored. A backslash starts an escape: ``\\t \\n \\r \\f``, ``\\u00e4`` (UTF-16); before any other character, it is
ignored. If a key is repeated, the last line applies.

Java reads such files as ISO 8859-1, Parley as UTF-8. ASCII characters and escapes have the same meaning in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from os import PathLike

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.)", re.DOTALL)
# A key ends at the first blank, "=" or ":" that is not preceded by a backslash.
_ENTRY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


def read_properties(path: str | PathLike[str]) -> dict[str, str]:
    """Return the entries of a file. Raises OSError, or ValueError with the file's name if the file is malformed."""
    with open(path, encoding="utf-8", newline="") as file:
        try:
            return parse_properties(file.read())
        except ValueError as error:  # a bad escape, or invalid UTF-8
            raise ValueError(f"{path}: {error}") from error


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the entries of a string. Raises ValueError for ``\u`` without four hexadecimal digits."""
    entries: dict[str, str] = {}
    for line in filter(None, _logical_lines(text)):
        match = _ENTRY.fullmatch(line)
        assert match is not None  # the pattern matches every line
        entries[_unescape(match[1])] = _unescape(match[2])
    return entries


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines joined with their continuations, without comments, blank lines and leading blanks."""
    whole: list[str] = []
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANKS)
        if not any(whole) and (not line or line[0] in "#!"):
            continue
        if _goes_on(line):
            whole.append(line[:-1])
            continue
        yield "".join((*whole, line))
        whole.clear()
    if whole:
        yield "".join(whole)


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_escaped, text)
    # Two escaped halves of a UTF-16 pair are one character.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escaped(match: re.Match[str]) -> str:
    code = match[1]
    if code == "u":
        raise ValueError("malformed escape: \\u needs four hexadecimal digits")
    if code[0] == "u":
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, code)
