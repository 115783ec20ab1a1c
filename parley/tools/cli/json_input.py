"""The JSON files that commands are given: plans of partitions, in the forms of Kafka's tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parley.tools.cli.invocation import CommandError

VERSION = 1


def read_plan(path: Path, of: str) -> list[dict[str, Any]]:
    """The objects of the list ``of`` in the file; ``-`` reads standard input. Raises :class:`CommandError`."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except OSError as error:
        raise CommandError(f"The file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"The file {path} is no text.") from error
    return parse_plan(text, of)


def parse_plan(text: str, of: str) -> list[dict[str, Any]]:
    """The objects of the list ``of`` in a JSON text of version 1. Raises :class:`CommandError`."""
    try:
        plan = json.loads(text)
    except ValueError as error:
        raise CommandError(f"The input is no JSON: {error}.") from error
    if not isinstance(plan, dict):
        raise CommandError(f'The JSON is no object with a list "{of}".')
    if plan.get("version", VERSION) != VERSION:
        raise CommandError(f"The JSON is of version {plan['version']}; only version {VERSION} is known.")
    entries = plan.get(of, [])
    if not isinstance(entries, list) or any(not isinstance(entry, dict) for entry in entries):
        raise CommandError(f'"{of}" in the JSON is no list of objects.')
    return entries


def member(entry: Mapping[str, Any], name: str, kind: type) -> Any:
    """A value that each entry must have. Raises :class:`CommandError` where it is missing or of another kind."""
    value = entry.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        wanted = {str: "a text", int: "a number", list: "a list"}[kind]
        raise CommandError(f'Each entry has {wanted} "{name}", not {json.dumps(dict(entry))}.')
    return value
