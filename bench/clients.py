"""Runs the programs of clients, each in a separate process, to their end or in the background."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CLIENT_S = 300.0
"""The time that a client may take, in seconds."""


def run_client(module: str, *words: object) -> Any:
    """Run a program of ``bench``, and return the JSON object of its last line. Raises ``RuntimeError`` if it fails, and
    ``TimeoutExpired`` if it takes longer than ``CLIENT_S``."""
    with client(module, *words) as running:
        return outcome(running)


@contextmanager
def client(module: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Run a program of ``bench`` inside the context, and yield its process. Kills it afterwards if it still runs."""
    command = [sys.executable, "-m", module, *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def wait_until_begun(process: subprocess.Popen[str]) -> None:
    """Wait until the program has printed its first line, ``begun``. Raises ``RuntimeError`` if it fails before that."""
    assert process.stdout is not None
    if process.stdout.readline() != "begun\n":
        outcome(process)
        raise RuntimeError("the client did not begin")


def outcome(process: subprocess.Popen[str], line: str = "") -> Any:
    """Write a line to the program, wait for its end, and return the JSON object of its last line. Raises
    ``RuntimeError`` if it fails, and ``TimeoutExpired`` if it takes longer than ``CLIENT_S``."""
    output, errors = process.communicate(line, timeout=CLIENT_S)
    if process.returncode:
        last = errors.strip().rpartition("\n")[2]
        raise RuntimeError(f"a client failed: {last}")
    return json.loads(output.strip().rpartition("\n")[2])
