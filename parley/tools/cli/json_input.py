"""Read the JSON files that commands take as input: lists of partitions, in the format of Kafka's tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parley.tools.cli.invocation import CommandError

VERSION = 1


def read_plan(path: Path, of: str) -> list[dict[str, Any]]:
    """Read the list named ``of`` from a file, or from standard input if ``path`` is ``-``.

    Raises ``CommandError`` if the file cannot be read or has any other format.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except OSError as error:
        raise CommandError(f"The file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"The file {path} is not a text file.") from error
    return parse_plan(text, of)


def parse_plan(text: str, of: str) -> list[dict[str, Any]]:
    """Parse the list named ``of`` in JSON text. Returns an empty list if there is no such list. Raises ``CommandError``
    if the text has any other format."""
    try:
        plan = json.loads(text)
    except ValueError as error:
        raise CommandError(f"The input is not valid JSON: {error}.") from error
    if not isinstance(plan, dict):
        raise CommandError(f'The JSON must be an object with a list "{of}".')
    if plan.get("version", VERSION) != VERSION:
        raise CommandError(f"The JSON has version {plan['version']}; only version {VERSION} is supported.")
    entries = plan.get(of, [])
    if not isinstance(entries, list) or any(not isinstance(entry, dict) for entry in entries):
        raise CommandError(f'"{of}" in the JSON must be a list of objects.')
    return entries


def member(entry: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a required value of an entry. Raises ``CommandError`` if the value is missing or of another type."""
    value = entry.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        wanted = {str: "a string", int: "a number", list: "a list"}[kind]
        raise CommandError(f'Each entry needs {wanted} "{name}"; this one has none: {json.dumps(dict(entry))}.')
    return value
