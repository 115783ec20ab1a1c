"""``sasl.kerberos.principal.to.local.rules``: maps a Kerberos principal to the user name of a Kafka principal.

The first rule that applies is used. ``DEFAULT`` takes the first component of a principal in the default realm. Any
other rule is ``RULE:[n:format](pattern)s/from/to/g``, followed by ``/L`` or ``/U`` for lower or upper case; everything
after the bracket is optional. It applies to principals with ``n`` components: in the format, ``$0`` is the realm and
``$1`` the first component. If the pattern matches the whole result, the substitution produces the name. Patterns are
Python regular expressions, which include almost all of Java's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from parley.light_dataclasses import dataclass

_NAME: Final = re.compile(r"(?P<service>[^/@]*)(?:/(?P<host>[^/@]*))?@(?P<realm>[^/@]*)")
_RULE: Final = re.compile(
    r"(?P<default>DEFAULT)|RULE:\[(?P<components>[0-9]+):(?P<format>[^\]]*)\](?:\((?P<pattern>[^)]*)\))?"
    r"(?:s/(?P<source>[^/]*)/(?P<target>[^/]*)/(?P<repeat>g)?)?/?(?P<case>[LU])?"
)
_PARAMETER: Final = re.compile(r"\$([0-9]*)")
_REFERENCE: Final = re.compile(r"\\(?P<escaped>.)|\$(?P<group>[0-9])|(?P<other>\\|\$)", re.DOTALL)


class NoShortName(Exception):
    """Raised if the Kerberos principal cannot be mapped to a user name, so the client cannot log in."""


@dataclass(frozen=True, slots=True)
class ShortNameRule:
    """One rule. ``components`` is None for ``DEFAULT``. ``text`` is the rule as the operator wrote it."""

    text: str
    components: int | None = None
    format: str = ""
    pattern: re.Pattern[str] | None = None
    source: re.Pattern[str] | None = None
    target: str = ""
    repeat: bool = False
    case: str = ""

    def apply(self, parts: Sequence[str], default_realm: str) -> str | None:
        """Return the user name, or None if the rule does not apply. ``parts`` are the realm and the components.

        Raises NoShortName if the rule applies, but its result is a principal instead of a user name.
        """
        if self.components is None:
            name = parts[1] if parts[0] == default_realm else None
        else:
            name = self._substituted(parts)
        if name is None:
            return None
        if "/" in name or "@" in name:
            raise NoShortName(f"{self.text} produces {name!r}, which is not a user name")
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _substituted(self, parts: Sequence[str]) -> str | None:
        if len(parts) - 1 != self.components:
            return None
        base = _PARAMETER.sub(lambda found: parts[int(found[1])], self.format)
        if self.pattern is not None and not self.pattern.fullmatch(base):
            return None
        if self.source is None:
            return base
        return self.source.sub(lambda match: _expanded(self.target, match), base, count=0 if self.repeat else 1)


def _expanded(target: str, match: re.Match[str]) -> str:
    return _REFERENCE.sub(lambda found: found["escaped"] or match[int(found["group"])] or "", target)


class ShortNames:
    """The rules by which one listener maps Kerberos principals to user names."""

    def __init__(self, rules: Sequence[str], default_realm: str) -> None:
        """Parse the rules. ``default_realm`` is the realm for ``DEFAULT``. Raises ValueError if a rule is malformed."""
        self._rules = tuple(map(_parsed, rules))
        self._default_realm = default_realm

    def name_of(self, principal: str) -> str:
        """Return the user name of a principal, which has the form ``name@REALM`` or ``name/host@REALM``.

        Raises NoShortName if no rule applies, or if the principal has another form. A principal with a backslash is
        rejected, too, because a backslash escapes a character that would otherwise separate components.
        """
        found = _NAME.fullmatch(principal)
        if found is None or "\\" in principal:
            raise NoShortName(f"{principal!r} is not of the form name@REALM or name/host@REALM")
        host = () if found["host"] is None else (found["host"],)
        parts = (found["realm"], found["service"], *host)
        for rule in self._rules:
            name = rule.apply(parts, self._default_realm)
            if name == "":
                raise NoShortName(f"{rule.text} produces an empty name for {principal!r}")
            if name is not None:
                return name
        raise NoShortName(f"no rule of sasl.kerberos.principal.to.local.rules applies to {principal!r}")


def _parsed(text: str) -> ShortNameRule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is neither DEFAULT nor RULE:[n:format](pattern)s/from/to/g/L")
    if found["default"]:
        return ShortNameRule(text)
    components, target = int(found["components"]), found["target"] or ""
    for parameter in _PARAMETER.findall(found["format"]):
        if not parameter or int(parameter) > components:
            raise ValueError(f"{text!r}: the format can contain $0 to ${components}, not ${parameter}")
    source = _compiled(text, found["source"])
    for reference in _REFERENCE.finditer(target):
        if reference["other"] or (reference["group"] and source and int(reference["group"]) > source.groups):
            raise ValueError(f"{text!r}: {target!r} refers to a group that {found['source']!r} does not have")
    return ShortNameRule(
        text,
        components,
        found["format"],
        _compiled(text, found["pattern"]),
        source,
        target,
        repeat=found["repeat"] is not None,
        case=found["case"] or "",
    )


def _compiled(text: str, pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(pattern, re.ASCII)  # as in Java, \d and \w match only ASCII characters
    except re.error as error:
        raise ValueError(f"{text!r}: {pattern!r} is not a regular expression: {error}") from None
