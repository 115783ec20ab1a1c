"""Run Apache Kafka's MirrorMaker 2 together with our mirror."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.kafka import JavaServer, java_command
from tests.system import peers


def command(main: str, *args: str) -> list[str]:
    """Return the command line that runs a class with MirrorMaker on its class path."""
    return java_command(main, *args, more_libs=peers.CACHE / "mirror-maker")


def run(main: str, *args: str) -> str:
    """Run a class, and return its standard output."""
    done = subprocess.run(command(main, *args), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(properties: Path) -> JavaServer:
    """Start a MirrorMaker with an ``mm2.properties`` file."""
    return JavaServer(command("org.apache.kafka.connect.mirror.MirrorMaker", str(properties)), cwd=properties.parent)
