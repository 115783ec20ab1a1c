"""The types of the doctor's checks and results: check, observation, finding, diagnosis. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Final

from parley.tools.doctor.facts import Cluster, Machine, Missing, Part

PAGE: Final = "docs/doctor.md"
LISTED: Final = 5
"""The maximum number of things that a finding lists."""


class Severity(IntEnum):
    """The severity of a finding. A note does not change the exit code."""

    ERROR = 3
    WARNING = 2
    NOTE = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """An observation of a check: a sentence, the evidence, the time since which it has been true, and what to do next.

    ``next`` and ``severity`` override those of the check if they are given.
    """

    text: str
    evidence: Sequence[str] = ()
    since: datetime | None = None
    next: Sequence[str] = ()
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the table of checks: its name, its question, its severity, and what to do (``next``). ``needs`` are the
    parts of the snapshot that it requires.

    ``in_cluster`` examines a running cluster, ``on_machine`` a properties file and its machine; at least one of them is
    set. ``of_parley`` is True if the check needs something that Apache Kafka does not have.
    """

    name: str
    severity: Severity
    asks: str
    next: Sequence[str]
    needs: Sequence[Part] = ()
    in_cluster: Callable[[Cluster], Iterable[Seen]] | None = None
    on_machine: Callable[[Machine], Iterable[Seen]] | None = None
    of_parley: bool = False

    @property
    def link(self) -> str:
        """The check's section in the documentation."""
        return f"{PAGE}#{self.name}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem: the check that has found it, and what it has seen."""

    check: Check
    seen: Seen

    @property
    def severity(self) -> Severity:
        """The severity of the observation if it has one, otherwise that of the check."""
        return self.seen.severity or self.check.severity

    @property
    def next(self) -> Sequence[str]:
        """What to do: commands and sentences, in order."""
        return self.seen.next or self.check.next


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, the most severe first, and what was not examined."""

    subject: str
    findings: Sequence[Finding]
    missing: Sequence[Missing]
    checks: int
    """The number of checks for which all facts were available."""

    def count(self, severity: Severity) -> int:
        """Return the number of findings with this severity."""
        return sum(each.severity is severity for each in self.findings)


def diagnose(checks: Iterable[Check], facts: Cluster | Machine, subject: str) -> Diagnosis:
    """Apply the checks that fit the facts, and return their findings. ``subject`` describes what was examined."""
    missing = {each.part for each in facts.missing}
    found: list[Finding] = []
    applied = 0
    for check in checks:
        seen: Iterable[Seen] | None = None
        if isinstance(facts, Cluster) and check.in_cluster is not None:
            seen = check.in_cluster(facts)
        if isinstance(facts, Machine) and check.on_machine is not None:
            seen = check.on_machine(facts)
        if seen is None:
            continue
        applied += not missing & set(check.needs)
        found += [Finding(check, each) for each in seen]
    found.sort(key=lambda each: -each.severity)
    return Diagnosis(subject, found, facts.missing, applied)


def some(names: Iterable[object], most: int = LISTED) -> str:
    """Return the first ``most`` of these names as text, with the number of omitted names."""
    listed = [str(each) for each in names]
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")
