"""``parley tail``: show the last records of topics, and then each new record as it arrives."""

from __future__ import annotations

import re
import time
from typing import Annotated, Final

import typer

from parley.tools.cli.app import App
from parley.tools.cli.common_options import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    BootstrapServer,
    CommandConfig,
    client_properties,
)
from parley.tools.cli.invocation import CommandError

app = App(
    "Show the last records of topics, then each new record, one line each.\n\n"
    "A line contains the time, the partition and the offset (in the partition's color on a terminal), the key (`-` if "
    "there is none), the value, and the headers in brackets. Characters that a terminal would interpret are escaped. "
    "The last records are sorted by time. No consumer group is used, so no offsets are stored and no right on a group "
    "is needed. `parley consume` has Kafka's options: groups, offsets, deserializers and unchanged bytes.",
    examples=[
        ("parley tail orders", "the last ten records, then new ones until Ctrl-C"),
        ("parley tail orders payments -n 0", "only new records, of two topics"),
        ("parley tail orders --from 15m --no-follow | grep alice", "what was written in the last 15 minutes"),
        ("parley tail orders --from 2026-11-25T12:00:00 --json", "since a time (UTC), an object per line"),
    ],
)

LAST_MAX: Final = 10_000
"""The maximum number of last records, which are sorted in memory."""
_DURATION: Final = re.compile(r"(\d{1,9})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_from(text: str, now_ms: int) -> int:
    """Parse ``--from``. Returns ms since 1970, or ``EARLIEST``. An age such as ``15m`` counts back from ``now_ms``.
    Raises ``CommandError`` for any other format."""
    from parley.tools.cli.topic_offsets import EARLIEST

    if text == "earliest":
        return EARLIEST
    if found := _DURATION.fullmatch(text):
        return max(0, now_ms - int(found[1]) * _SECONDS[found[2]] * 1000)
    from parley.tools.cli.groups.reset import parse_datetime

    try:
        return parse_datetime(text)
    except CommandError as error:
        raise CommandError(
            f"--from takes earliest, an age such as 30s, 15m, 2h or 1d, or a time such as 2026-11-25T12:00:00, not "
            f"'{text}'."
        ) from error


@app.only_command()
def tail(
    topic: Annotated[list[str], typer.Argument(metavar="TOPIC", help="The topics.", show_default=False)],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    last: Annotated[
        int | None,
        typer.Option("-n", "--last", help="Number of last records to show first; 10 unless --from is given."),
    ] = None,
    begin: Annotated[
        str,
        typer.Option("--from", help="Start at a time instead: earliest, an age such as 15m, or 2026-11-25T12:00:00."),
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for new records, or end after those that exist.")
    ] = True,
    json_output: AsJson = False,
    command_config: CommandConfig = None,
) -> None:
    if last is not None and begin:
        raise CommandError("Use -n or --from, not both: each sets the start.")
    if last is not None and not 0 <= last <= LAST_MAX:
        raise CommandError(f"-n takes a number from 0 to {LAST_MAX}. Use --from to start earlier.")
    from parley.tools.cli.tail.reading import Wanted, show

    since = parse_from(begin, int(time.time() * 1000)) if begin else None
    wanted = Wanted(tuple(dict.fromkeys(topic)), 10 if last is None else last, since, follow)
    show(wanted, bootstrap_server, client_properties(command_config), as_json=json_output)
