"""The animation in the README, docs/quickstart.svg: the output of ``make quickstart``, recorded while it runs."""

from __future__ import annotations

import subprocess
import sys
import time

from website.pictures.terminal import Line, moving_picture


def quickstart() -> str:
    """Run the quickstart and return its picture. Raises CalledProcessError if it fails, so no picture shows a loss."""
    lines = [Line(0.0, "$ make quickstart")]
    command = [sys.executable, "-u", "-m", "parley.tools.quickstart"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        began = time.monotonic()
        lines += [Line(time.monotonic() - began, line.rstrip()) for line in process.stdout]
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return moving_picture("make quickstart", lines)
