"""Options that the commands for all types of groups share: the action, the groups, the connection, and a reset."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from parley.tools.cli.cluster_client import on_cluster
from parley.tools.cli.common_options import one_action
from parley.tools.cli.groups.partition_selection import parse_selection
from parley.tools.cli.invocation import FAILED, CommandError
from parley.tools.cli.output import Format

if TYPE_CHECKING:
    from parley.protocol.client import Client
    from parley.tools.cli.groups.reset import Plan, Result

T = TypeVar("T")

ALL = "*"
"""The value of an option such as ``--state`` that is given without a value."""


class GroupOptions:
    """The options that all these commands have. The class of each command defines them, in the order of its help
    text."""

    bootstrap_server: str
    list_: bool
    describe: bool
    delete: bool
    delete_offsets: bool
    reset_offsets: bool
    group: list[str]
    all_groups: bool
    dry_run: bool
    execute: bool
    timeout: int
    command_config: Path | None
    output_format: Format | None

    def action(self, **more: object) -> str:
        """Return the action to carry out. Raises ``CommandError`` unless exactly one is given."""
        return one_action(
            list=self.list_,
            describe=self.describe,
            delete=self.delete,
            delete_offsets=self.delete_offsets,
            reset_offsets=self.reset_offsets,
            **more,
        )

    def names(self) -> list[str] | None:
        """Return the names of the groups, or None for all groups."""
        return None if self.all_groups else self.group

    def on_cluster(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run ``work`` with a client of the cluster, and return its result. Raises ``CommandError`` if a setting is
        invalid or a request fails."""
        return on_cluster(self.bootstrap_server, self.command_config, work, timeout_ms=self.timeout)


class ResetOptions(GroupOptions):
    """The options of a command whose resets are shown without ``--execute``, as a table or as CSV."""

    export: bool

    def reset(
        self,
        topics: Sequence[str],
        all_topics: bool,
        option: str,
        work: Callable[[Client, Plan], Awaitable[Sequence[Result]]],
    ) -> None:
        """Plan a reset, let ``work`` carry it out, and print the results. ``option`` is the name of the option for
        topics.

        Raises ``CommandError`` for options that cannot be combined, and ``typer.Exit`` if a group was not reset.
        """
        from parley.tools.cli.groups import reset

        if self.execute and self.dry_run:
            raise CommandError("Use --dry-run or --execute, not both.")
        given: dict[str, Any] = {name: getattr(self, name) for name in reset.TARGETS}
        target = reset.target(**given)
        if target.kind != "from_file" and bool(topics) == all_topics:
            raise CommandError(f"Name either --{option} or --all-{option}s.")
        names = self.names()
        groups = None if names is None else tuple(names)
        plan = reset.Plan(target, groups, parse_selection(topics), self.execute, self.timeout)
        if not self.execute and not self.dry_run and not self.export:
            reset.warn_dry_run()
        results = self.on_cluster(lambda client: work(client, plan))
        reset.show(results, as_csv=self.export, output_format=self.output_format)
        if any(result.error for result in results):
            raise typer.Exit(FAILED)
