"""``python -m bench.verification``: the cost of record verification in a broker, as CPU time per GB.

Measures appends (which build the digests), and reads of records: those that the broker has written itself, those after
a restart of the broker, which need no verification because their files have not changed, and those after a restart that
looks like one of the machine, because the list of verified files is missing. Of these, the first read verifies every
byte, the second does not. All bytes are in the page cache. Then it measures verification alone, by the size of the
batches (``bench.first_reads``). ``--python`` names the interpreter of another version of Parley to measure in turns
with this one.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from bench import first_reads
from bench.clusters import Parley, free_port
from bench.figures import OURS, Figures, Found, report
from parley.storage.damage.verified_files import VERIFIED_SEGMENTS

TOPIC = "bench"

BATCHES = {"one small record": 100, "one record of 1 KB": 1000, "16 KB": 16_384, "1 MB": 1_000_000}
"""The sizes of batches for which verification alone is measured."""
ALONE = 256_000_000
"""The size of the log for that."""


class Version(Parley):
    """A broker of the version that ``python`` runs. It can be restarted with its data."""

    def __init__(self, folder: Path, python: str) -> None:
        super().__init__(folder)
        self._python = python

    def command(self) -> list[str]:
        return [self._python, *super().command()[1:]]

    def restart(self, *, keep_verified: bool = True) -> None:
        """Stop the broker cleanly and start it again. Without ``keep_verified``, it must verify all records again."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        if not keep_verified:
            (self.folder / "data" / VERIFIED_SEGMENTS).unlink(missing_ok=True)
        self.port = free_port()
        self.start()

    def work(self, work: str, size: int, total: int) -> float:
        """Produce or consume. Returns the broker's CPU seconds per GB."""
        before = self.cpu_seconds()
        command = [sys.executable, "-m", "bench.load", work, self.bootstrap, TOPIC]
        command += ["--size", str(size), "--bytes", str(total)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return (self.cpu_seconds() - before) / (json.loads(done.stdout)["bytes"] / 1e9)


def turn(broker: Version, size: int, total: int) -> dict[str, float]:
    """Measure a broker with a new log, and return its figures by label."""
    broker.start()
    try:
        broker.create_topic(TOPIC, 1)
        figures = {"produce": broker.work("produce", size, total)}
        for number in (1, 2):
            figures[f"consume what it wrote, {number}"] = broker.work("consume", size, total)
        for restart, keep_verified in (("a restart", True), ("a restart of the machine", False)):
            broker.restart(keep_verified=keep_verified)
            for nth in ("first", "again"):
                figures[f"consume after {restart}, {nth}"] = broker.work("consume", size, total)
        return figures
    finally:
        broker.stop()


def alone(python: str, folder: Path, total: int) -> dict[str, float]:
    """Measure verification without a broker, with the version of Parley that ``python`` imports. Returns the figures by
    label."""
    figures = {}
    for name, size in BATCHES.items():
        # Without the program's folder in the path, so that ``python`` imports its own version of Parley.
        command = [python, "-P", str(Path(first_reads.__file__)), str(folder / str(size))]
        command += ["--batch", str(size), "--bytes", str(total)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        costs = json.loads(done.stdout)
        figures[f"verify batches of {name}"] = costs["first"] - costs["again"]
        figures[f"copy and checksum the file, batches of {name}"] = costs["plain"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", default=[], help="the interpreter of another version")
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: Figures = defaultdict(list)
    for _ in range(options.rounds):
        for python in (sys.executable, *options.python):
            with tempfile.TemporaryDirectory() as folder:
                broker = Version(Path(folder) / "broker", python)
                figures = turn(broker, options.size, options.bytes) | alone(
                    python, Path(folder), min(options.bytes, ALONE)
                )
                for name, seconds in figures.items():
                    found[f"{name}: CPU s/GB", OURS if python == sys.executable else python].append(seconds)
    report(Found(found))


if __name__ == "__main__":
    main()
