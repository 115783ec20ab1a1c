"""JAAS configurations, as Kafka reads them from ``sasl.jaas.config``: ``Module required option="value" ...;``.

A login module is a Java class, a control flag and options. The text is split in the same way as by Kafka, which uses
Java's ``StreamTokenizer``: a value needs quotes if it contains characters other than letters, digits and ``. - _ $`` or
starts with a digit; inside quotes, backslashes start escapes; ``//`` and ``/* */`` are comments. No error message
contains a value, or a word that may be part of a value because its quotes are missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Final

from parley.light_dataclasses import dataclass

__all__ = ["BadJaas", "LoginModule", "parse_jaas", "parse_jaas_file", "single_login_module"]

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = r"""(?xs)
    \s+ | /\*.*?\*/ | /[^\n]*              # blanks, comments (also after a single slash)
    | "(?P<double>(?:\\.|[^"\\\n])*)"
    | '(?P<single>(?:\\.|[^'\\\n])*)'
    | (?P<word>[A-Za-z_$\u00a0-\U0010ffff][\w$.-]*)
    | (?P<other>.)"""
"""Compiled at its first use: few brokers have JAAS lines, and compiling takes 3 ms."""
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_END: Final = ""


class BadJaas(ValueError):
    """A JAAS configuration is malformed. The message never contains the value of an option, because it may be
    secret."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module and its options."""

    class_name: str
    flag: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the class without its package, such as ``ScramLoginModule``."""
        return self.class_name.rpartition(".")[2]

    def option(self, name: str) -> str:
        """Return the value of an option. Raises BadJaas if the option is missing."""
        if name not in self.options:
            raise BadJaas(f'{self.name} needs the option {name}="..."')
        return self.options[name]


def single_login_module(text: str) -> LoginModule:
    """Return the only login module in a JAAS line. Raises BadJaas if the line is malformed, is empty or contains
    several modules."""
    modules = parse_jaas(text)
    if len(modules) != 1:
        raise BadJaas(f"the JAAS line contains {len(modules)} login modules, expected 1")
    return modules[0]


def parse_jaas(text: str) -> list[LoginModule]:
    """Return the login modules in a JAAS line, in which a semicolon ends each module. Raises BadJaas if the line is
    malformed or empty."""
    tokens = _tokens(text)
    modules = []
    while (kind_and_text := next(tokens, None)) is not None:
        modules.append(_module(kind_and_text, tokens))
    if not modules:
        raise BadJaas("the JAAS line is empty")
    return modules


def parse_jaas_file(text: str) -> dict[str, list[LoginModule]]:
    """Return the login modules of each section of a JAAS file, ``Name { Module required option="value"; };``. Raises
    BadJaas if the file is malformed."""
    tokens = _tokens(text)
    sections: dict[str, list[LoginModule]] = {}
    for kind, name in tokens:
        if kind == "other" or next(tokens, (_END, "")) != ("other", "{"):
            raise BadJaas("expected the name of a section and {")
        modules = sections.setdefault(name, [])
        while (first := next(tokens, (_END, ""))) != ("other", "}"):
            modules.append(_module(first, tokens))
        if next(tokens, (_END, "")) != ("other", ";"):
            raise BadJaas(f"the section {name} is not terminated by a semicolon")
    return sections


def _module(first: tuple[str, str], tokens: Iterator[tuple[str, str]]) -> LoginModule:
    if first[0] != "word":
        raise BadJaas("a JAAS line begins with the class of a login module")
    class_name, flag = first[1], next(tokens, (_END, ""))[1]
    if flag.lower() not in _FLAGS:
        raise BadJaas(f"expected one of {', '.join(_FLAGS)} after the class of a login module")
    options: dict[str, str] = {}
    while True:
        kind, name = next(tokens, (_END, ""))
        if (kind, name) == ("other", ";"):
            return LoginModule(class_name, flag.lower(), options)
        if kind == _END:
            raise BadJaas(f"the options of {class_name} are not terminated by a semicolon")
        if kind == "other":
            raise BadJaas(f"an unexpected character after {_place(class_name, options)}; put the value in quotes")
        if next(tokens, (_END, "")) != ("other", "="):
            raise BadJaas(f"expected name=value after {_place(class_name, options)}")
        kind, value = next(tokens, (_END, ""))
        if kind not in ("word", "quoted"):
            raise BadJaas(f'a value is missing after {_place(class_name, options)}; values need quotes, as in a="1"')
        options[name] = value


def _place(class_name: str, options: Mapping[str, str]) -> str:
    return f"the option {list(options)[-1]}" if options else class_name


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind (``word``, ``quoted``, ``other``) and the text of each token."""
    for match in re.finditer(_TOKEN, text):
        for quoted in (match["double"], match["single"]):
            if quoted is not None:
                yield "quoted", _ESCAPE.sub(_escaped, quoted)
        for kind in ("word", "other"):
            if match[kind] is not None:
                yield kind, match[kind]


def _escaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPES.get(code, code)
