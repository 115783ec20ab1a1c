"""Checks of the combinations of options of the group commands."""

from __future__ import annotations

from collections.abc import Mapping

from parley.tools.cli.invocation import CommandError

Needs = Mapping[tuple[str, ...], tuple[str, ...]]
"""Maps actions to the options that are allowed only with one of these actions."""


def check_needs(options: object, action: str, needs: Needs) -> None:
    """Raise ``CommandError`` if an option is set that does not belong to the action."""
    for needed, names in needs.items():
        for name in names if action not in needed else ():
            if getattr(options, name):
                raise CommandError(f"{_flag(name)} needs {_flag(needed[0])}.")


def _flag(name: str) -> str:
    return f"--{name.strip('_').replace('_', '-')}"


def view_of(*, members: bool, offsets: bool, state: str) -> str:
    """Return the subject to describe: members, state, or offsets (the default). Raises ``CommandError`` if several are
    set."""
    if sum((members, offsets, bool(state))) > 1:
        raise CommandError("Use one of --members, --offsets and --state.")
    return "members" if members else "state" if state else "offsets"
