"""Sample a cluster once or repeatedly, and draw the figures on a terminal."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from typing import Final

from parley.protocol.client import Client
from parley.protocol.errors import KafkaError
from parley.tools.cli.colors import bold
from parley.tools.cli.top.figures import Figures, between
from parley.tools.cli.top.sampling import Sample, take

_BEGIN: Final = "\x1b[?1049h\x1b[?25l"
"""The sequence that switches the terminal to its alternate screen and hides the cursor."""
_END: Final = "\x1b[?25h\x1b[?1049l"
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")


async def once(client: Client, interval_s: float, *, internal: bool) -> Figures:
    """Take two samples, ``interval_s`` seconds apart, and return the figures. Raises KafkaError if no broker
    responds."""
    before = await take(client, internal=internal)
    await asyncio.sleep(interval_s)
    return between(before, await take(client, internal=internal))


async def watch(client: Client, interval_s: float, *, internal: bool) -> None:
    """Draw the figures until the task is cancelled. Raises KafkaError if no broker responds to the first sample. If
    none responds later, show that and keep trying."""
    before = await take(client, internal=internal)
    sys.stdout.write(_BEGIN)
    try:
        _draw(["the first figures come after one interval"])
        while True:
            await asyncio.sleep(interval_s)
            before = await _look(client, before, internal=internal)
    finally:
        sys.stdout.write(_END)
        sys.stdout.flush()


async def _look(client: Client, before: Sample, *, internal: bool) -> Sample:
    try:
        now = await take(client, internal=internal)
    except KafkaError as error:
        _draw([f"no broker responds; trying again: {error.message}"])
        return before
    _, height = shutil.get_terminal_size()
    _draw(between(before, now).lines(height - 2))
    return now


def _draw(lines: list[str]) -> None:
    """Replace the lines on the screen. Each is cut to the screen's width."""
    columns, _ = shutil.get_terminal_size()
    head = bold(f"parley top   {lines[0]}"[:columns])
    shown = [head, *(_cut(each, columns) for each in lines[1:])]
    sys.stdout.write("\x1b[H" + "".join(f"{each}\x1b[K\r\n" for each in shown) + "\x1b[J")
    sys.stdout.flush()


def _cut(line: str, columns: int) -> str:
    """Cut a line to a width. Headings are bold as a whole."""
    plain = _STYLE.sub("", line)
    return bold(plain[:columns]) if plain != line else line[:columns]
