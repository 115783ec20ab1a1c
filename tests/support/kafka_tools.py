"""Apache Kafka's command-line tools, run one after the other in one JVM of each version."""

from __future__ import annotations

import atexit
import base64
import functools
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.support.kafka import KAFKA_4, JavaFailed, java_command

PROGRAM = Path(__file__).with_name("KafkaTools.java")


class Typed(NamedTuple):
    """The exit code and the output of a tool."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.out.splitlines()]


class _Jvm:
    """A JVM that waits for tools to run."""

    def __init__(self, version: str) -> None:
        command = java_command(str(PROGRAM), version=version)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self._end)

    def run(self, name: str, *args: str, stdin: str) -> Typed:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = (stdin, name, *args)
        self._process.stdin.write(" ".join(base64.b64encode(word.encode()).decode() for word in words) + "\n")
        self._process.stdin.flush()
        code, out, err = self._process.stdout.readline().rstrip("\n").split(" ")
        return Typed(int(code), base64.b64decode(out).decode(), base64.b64decode(err).decode())

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


_jvm = functools.cache(_Jvm)


def run_tool(name: str, *args: str, version: str = KAFKA_4, stdin: str = "") -> Typed:
    """Run the tool of class ``name`` to its end."""
    return _jvm(version).run(name, *args, stdin=stdin)


def output_of_tool(name: str, *args: str, version: str = KAFKA_4, with_errors: bool = False) -> str:
    """Return the tool's standard output, and its standard error if ``with_errors``. Raises JavaFailed if the tool
    fails."""
    typed = run_tool(name, *args, version=version)
    if typed.code:
        raise JavaFailed(f"{name} {' '.join(args)}: exit code {typed.code}\n{typed.err}\n{typed.out}")
    return typed.out + typed.err if with_errors else typed.out
