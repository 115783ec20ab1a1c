"""Apache Kafka's MirrorMaker 2, run beside ours."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.kafka import JavaServer, java_command
from tests.system import peers


def command(main: str, *args: str) -> list[str]:
    """Return the command line of a class that may use MirrorMaker."""
    return java_command(main, *args, more_libs=peers.CACHE / "mirror-maker")


def run(main: str, *args: str) -> str:
    """What a class writes to standard output."""
    done = subprocess.run(command(main, *args), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(properties: Path) -> JavaServer:
    """Return a MirrorMaker on an ``mm2.properties`` file."""
    return JavaServer(command("org.apache.kafka.connect.mirror.MirrorMaker", str(properties)), cwd=properties.parent)
