"""Show a diagnosis: as text, grouped with the most severe findings first, or as plain data for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from parley.tools.cli.colors import Color, colored
from parley.tools.cli.invocation import INCOMPLETE
from parley.tools.doctor.findings import Diagnosis, Finding, Severity
from parley.tools.plurals import plural

HEALTHY, WARNINGS, ERRORS = 0, 1, 2
"""The exit codes, in addition to ``INCOMPLETE``."""
_TITLES: Final = {Severity.ERROR: "Errors", Severity.WARNING: "Warnings", Severity.NOTE: "Notes"}
_COLORS: Final = {Severity.ERROR: Color.RED, Severity.WARNING: Color.YELLOW, Severity.NOTE: Color.BLUE}


def exit_code(found: Diagnosis) -> int:
    """Return the exit code: that of the most severe finding. Without findings, ``INCOMPLETE`` if a part could not be
    examined, otherwise ``HEALTHY``."""
    if found.count(Severity.ERROR):
        return ERRORS
    if found.count(Severity.WARNING):
        return WARNINGS
    return INCOMPLETE if any(each.has_failed for each in found.missing) else HEALTHY


def as_data(found: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as plain data."""
    return {
        "subject": found.subject,
        "exitCode": exit_code(found),
        "checks": found.checks,
        "findings": [_finding(each) for each in found.findings],
        "notExamined": [
            {"part": each.part.value, "reason": each.reason, "failed": each.has_failed} for each in found.missing
        ],
    }


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "name": found.check.name,
        "severity": found.severity.name.lower(),
        "text": found.seen.text,
        "since": found.seen.since.isoformat(timespec="seconds") if found.seen.since else None,
        "evidence": list(found.seen.evidence),
        "next": list(found.next),
        "docs": found.check.link,
    }


def as_text(found: Diagnosis) -> Iterator[str]:
    """Yield the diagnosis as lines of text."""
    yield found.subject
    for severity in Severity.ERROR, Severity.WARNING, Severity.NOTE:
        of_it = [each for each in found.findings if each.severity is severity]
        if of_it:
            yield ""
            yield colored(_TITLES[severity], _COLORS[severity])
        for each in of_it:
            yield from _lines(each)
    if found.missing:
        yield ""
        yield "Not examined"
        for missing in found.missing:
            yield f"  {missing.part.value}: {missing.reason}"
    yield ""
    yield _verdict(found)


def _lines(found: Finding) -> Iterator[str]:
    yield f"  {colored(found.check.name, _COLORS[found.severity])}: {found.seen.text}"
    if found.seen.since is not None:
        yield f"    since  {found.seen.since.isoformat(timespec='seconds')}"
    for number, each in enumerate(found.seen.evidence):
        yield f"    {'' if number else 'seen':<6} {each}"
    for number, each in enumerate(found.next):
        yield f"    {'' if number else 'next':<6} {each}"
    yield f"    docs   {found.check.link}"


def _verdict(found: Diagnosis) -> str:
    code = exit_code(found)
    if code in (ERRORS, WARNINGS):
        return f"{plural(found.count(Severity.ERROR), 'error')}, {plural(found.count(Severity.WARNING), 'warning')}."
    if code == INCOMPLETE:
        return "No problem found, but not everything could be examined."
    return f"Healthy: {found.checks} checks."
