"""``ssl.principal.mapping.rules``: maps the distinguished name in a client's certificate to its principal (KIP-371).

The first rule whose pattern matches the whole name is used. A rule is either
``RULE:pattern/replacement/``, optionally followed by ``L`` or ``U`` to convert the result to lower or upper case, or
``DEFAULT``, which keeps the name unchanged. Patterns are Python regular expressions, which include almost all of
Java's. In a replacement, ``$1`` is the first group, as in Java.
"""

from __future__ import annotations

import re
from typing import Final

from parley.light_dataclasses import dataclass

_RULE: Final = (
    r"(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?)"
)
_SEPARATED: Final = re.compile(rf"\s*(?:{_RULE})?\s*(?:,\s*|$)")
_REFERENCE: Final = re.compile(r"\\(?P<escaped>.)|\$(?P<group>\d)|\$\{(?P<name>[A-Za-z][A-Za-z0-9]*)\}", re.DOTALL)


class NoRuleMatches(Exception):
    """Raised if no rule matches a distinguished name, so the client has no principal."""


@dataclass(frozen=True, slots=True)
class MappingRule:
    """One rule. Without a pattern it is the rule ``DEFAULT``."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the principal's name, or None if the rule does not match ``name``."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        mapped = _REFERENCE.sub(lambda reference: _referenced(reference, match), self.replacement)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped


def _referenced(reference: re.Match[str], match: re.Match[str]) -> str:
    if reference["escaped"] is not None:
        return reference["escaped"]
    if reference["name"] is not None:
        return match[reference["name"]] or ""
    group = int(reference["group"])
    return reference[0] if group > (match.re.groups or -1) else match[group] or ""


class PrincipalMapping:
    """The rules by which one listener maps the names in certificates to principals."""

    def __init__(self, text: str) -> None:
        """Parse the rules in ``text``. Raises ValueError if one is malformed."""
        self._rules = tuple(_parsed(text.strip()))

    def name_of(self, distinguished_name: str) -> str:
        """Return the name of the principal for the distinguished name in a certificate. Raises NoRuleMatches if no rule
        matches."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        raise NoRuleMatches(f"no rule of ssl.principal.mapping.rules matches {distinguished_name}")


def _parsed(text: str) -> list[MappingRule]:
    rules, pos = [], 0
    while pos < len(text):
        found = _SEPARATED.match(text, pos)
        if found is None or found.end() == pos:
            raise ValueError(f"the rule that begins with {text[pos : pos + 40]!r} is not RULE:pattern/replacement/[LU]")
        pos = found.end()
        if found["default"]:
            rules.append(MappingRule())
        elif found["pattern"] is not None:
            rules.append(_rule(found))
    return rules


def _rule(found: re.Match[str]) -> MappingRule:
    try:
        pattern = re.compile(found["pattern"])
    except re.error as error:
        raise ValueError(f"{found['pattern']!r} is not a regular expression: {error}") from None
    for reference in _REFERENCE.finditer(found["replacement"]):
        if reference["name"] is not None and reference["name"] not in pattern.groupindex:
            raise ValueError(f"{found['replacement']!r} refers to a group that the pattern does not have")
    return MappingRule(pattern, found["replacement"], found["case"])
