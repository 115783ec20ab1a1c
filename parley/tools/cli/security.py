"""``parley security check``: what a broker's configuration or a running cluster leaves open, and how to close it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.tools.cli.app import App, example_text
from parley.tools.cli.common_options import CommandConfig, OutputFormat
from parley.tools.cli.invocation import FAILED, INCOMPLETE, CommandError
from parley.tools.cli.output import print_data

if TYPE_CHECKING:
    from parley.tools.security_check.checks import Finding
    from parley.tools.security_check.subject import Unchecked
_EXAMPLES = [
    ("parley security check server.properties", "a file, with the keys, certificates and store that it names"),
    (
        "parley security check --bootstrap-server broker1:9093 --command-config admin.properties",
        "a running cluster with its ACLs, also tried without a login",
    ),
]

app = App(
    "Show what a broker's properties file, or a running cluster, leaves open, and how to close it.\n\n"
    "The exit code is 0 if only notes are found, 1 if something is open, and 3 if nothing is open but a check failed, "
    "for example because the store did not respond. `docs/security-checks.md` lists the checks.",
    examples=_EXAMPLES,
)


@app.callback()
def security() -> None:
    """Make ``check`` a subcommand even though it is the only one."""


@app.command(epilog=example_text(_EXAMPLES))
def check(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A broker's properties file.")] = None,
    bootstrap_server: Annotated[
        str | None,
        typer.Option("--bootstrap-server", help="A running cluster, instead of a file: host:port,host:port,..."),
    ] = None,
    command_config: CommandConfig = None,
    output_format: OutputFormat = None,
) -> None:
    """Check a broker's properties file, or a running cluster."""
    from parley.tools.cli.invocation import silence_store_clients
    from parley.tools.security_check.checks import Severity, findings

    if (file is None) == (bootstrap_server is None):
        raise CommandError("Name a broker's properties file, or a running cluster with --bootstrap-server.")
    now = datetime.now(UTC)
    silence_store_clients()
    if file is not None:
        from parley.tools.security_check.file_subject import subject_of_file

        subject, unchecked = subject_of_file(file, now)
        for warning in subject.config.warnings:
            print(f"Warning: {file}: {warning}.", file=sys.stderr)
        subjects = [subject]
    else:
        from parley.tools.security_check.cluster_subjects import subjects_of_cluster

        subjects, unchecked = subjects_of_cluster(bootstrap_server or "", command_config, now)
    found = merged([finding for subject in subjects for finding in findings(subject)])
    is_open = any(finding.check.severity > Severity.NOTE for finding, _ in found)
    is_complete = not any(each.has_failed for each in unchecked)
    if output_format:
        texts = [each.text for each in unchecked]
        data = {"open": is_open, "complete": is_complete, "findings": list(map(_as_data, found)), "notChecked": texts}
        print_data(data, output_format)
    else:
        for line in _lines(found, unchecked):
            print(line)
    if is_open:
        raise typer.Exit(FAILED)
    if not is_complete:
        raise typer.Exit(INCOMPLETE)


_Merged = tuple["Finding", list[str]]
"""A finding, and the subjects that have it in common."""


def merged(findings: Iterable[Finding]) -> list[_Merged]:
    """Merge equal findings about several subjects, such as brokers. The most severe findings come first."""
    found: dict[tuple[str, str], _Merged] = {}
    for each in findings:
        found.setdefault((each.check.name, each.text), (each, []))[1].append(each.subject)
    return sorted(found.values(), key=lambda one: -one[0].check.severity)


def _as_data(one: _Merged) -> dict[str, Any]:
    finding, subjects = one
    return {
        "check": finding.check.name,
        "severity": finding.check.severity.name.lower(),
        "text": finding.text,
        "in": subjects,
        "advice": finding.advice,
    }


def _lines(found: Sequence[_Merged], unchecked: Sequence[Unchecked]) -> Iterable[str]:
    from parley.tools.security_check.checks import CHECKS, Severity

    for finding, subjects in found:
        yield f"{finding.check.severity.name.lower():<6}  {finding.check.name}: {finding.text} ({', '.join(subjects)})"
        yield f"        to close it: {finding.advice}"
    for each in unchecked:
        yield f"not checked: {each.text}"
    counts = {severity: sum(each.check.severity is severity for each, _ in found) for severity in Severity}
    if counts[Severity.HIGH] or counts[Severity.MEDIUM]:
        yield f"{counts[Severity.HIGH]} of high severity and {counts[Severity.MEDIUM]} of medium severity are open."
    elif any(each.has_failed for each in unchecked):
        yield "Nothing is known to be open, but the check is incomplete: see what was not checked."
    else:
        yield f"Nothing is open: {len(CHECKS)} checks."
