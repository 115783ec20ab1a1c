"""``make pipeline``: Connect, two topics and a Spark job that is killed halfway must count every change exactly once.

The input is every changed file of every commit in this repository's git log (without git: the files of the checkout and
their times). Connect's file source sends the lines of a growing file to a topic, a Spark job counts the changes by
window and folder into another topic, and Connect's file sink writes the counts to a file. The Spark job is killed
halfway and restarted from its checkpoint. Finally, the counts must equal those that plain Python computes from the
input; otherwise the exit code is 1. A PNG shows the throughput and the lag of the job.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from parley.tools.pipeline_plot import Sample, plot

SOURCE, TARGET = "changes", "changes-by-folder"
ROOT: Final = Path(__file__).parents[2]
FEED_S: Final = 20.0
"""The time during which the input file grows, in seconds."""
_PIECES: Final = 100
WAIT_S_MAX: Final = 300.0
_SAMPLE_S: Final = 0.5
_WINDOWS: Final = ((3 * 3600, "1 minute"), (3 * 86400, "10 minutes"), (60 * 86400, "6 hours"))
"""The window lengths, each for histories of up to this many seconds. Longer histories use a window of a day."""


def main(arguments: list[str]) -> int:
    """Run the demo. Returns 0 if the counts agree, 1 if they differ, and 130 if it was interrupted."""
    parser = argparse.ArgumentParser(prog="python -m parley.tools.pipeline_demo", allow_abbrev=False)
    parser.add_argument("--master", help="the Spark master; local by default")
    parser.add_argument("--plot", type=Path, default=Path("pipeline.png"), help="the file for the chart")
    options = parser.parse_args(arguments)
    changes = _changes()
    print(
        f"The input is {len(changes)} changed files, the first of {changes[0]['at']}, the last of {changes[-1]['at']}."
    )
    # SIGTERM, too, must end the processes started here.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with tempfile.TemporaryDirectory(prefix="parley-pipeline-") as name, _broker(Path(name)) as bootstrap:
            demo = Demo(Path(name), bootstrap, changes, options.master)
            counts = demo.run()
            agree = counts == Counter(one["folder"] for one in changes)
            verdict = f"{len(changes):,} changed files through two topics, totals {'agree' if agree else 'differ'}"
            plot(demo.samples, demo.killed, demo.again, verdict, options.plot)
    except KeyboardInterrupt:
        print("\nInterrupted: all processes have been stopped and their files deleted.", file=sys.stderr)
        return 128 + signal.SIGINT
    print(f"\nThe chart of lag and throughput is {options.plot.resolve()}.")
    return _report(changes, counts)


# --- Input ---


def _changes() -> list[dict[str, Any]]:
    """Return a change for every changed file in the git log, in order of time, or for every file of the checkout
    without git."""
    words = ["git", "-C", str(ROOT), "log", "--numstat", "--no-renames", "--no-show-signature", "--format=@%H %ct"]
    try:
        log = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    except OSError:  # git is not installed
        return sorted(_from_files(), key=_in_time)
    found = list(_from_log(log.stdout)) if log.returncode == 0 else []
    return sorted(found or _from_files(), key=_in_time)


def _in_time(change: dict[str, Any]) -> tuple[Any, ...]:
    return change["at"], change["commit"], change["path"]


def _from_log(text: str) -> Iterator[dict[str, Any]]:
    commit, at = "", 0
    for line in text.splitlines():
        if line.startswith("@"):
            commit, time_text = line[1:].split(" ")
            at = int(time_text)
        elif line:
            added, deleted, path = line.split("\t", 2)
            yield _change(commit, at, path, int(added) if added != "-" else 0, int(deleted) if deleted != "-" else 0)


def _from_files() -> Iterator[dict[str, Any]]:
    for path in ROOT.rglob("*.py"):
        if ".venv" not in path.parts:
            lines = path.read_bytes().count(b"\n")
            yield _change("", int(path.stat().st_mtime), str(path.relative_to(ROOT)), lines, 0)


def _change(commit: str, at: int, path: str, added: int, deleted: int) -> dict[str, Any]:
    moment = datetime.fromtimestamp(at, UTC).isoformat()
    folder = path.split("/")[0] if "/" in path else "."
    return {"commit": commit, "at": moment, "path": path, "folder": folder, "added": added, "deleted": deleted}


def _window(changes: list[dict[str, Any]]) -> str:
    first, last = (datetime.fromisoformat(changes[each]["at"]) for each in (0, -1))
    span = (last - first).total_seconds()
    return next((window for longest, window in _WINDOWS if span <= longest), "1 day")


# --- Processes ---


def _parley(*words: str) -> list[str]:
    print(f"\n$ parley {' '.join(words)}", flush=True)
    return [sys.executable, "-m", "parley", *words]


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
    """Run a broker until the context ends. Yields its address."""
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "metrics.listener": "",
        "log.dirs": str(folder / "broker"),
        "auto.create.topics.enable": "false",
    }
    words = [word for key, value in settings.items() for word in ("--override", f"{key}={value}")]
    process = subprocess.Popen(_parley("start", *words), stdout=subprocess.PIPE, text=True)
    try:
        yield _address(process)
    finally:
        process.terminate()
        process.wait()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        _, found, bootstrap = line.strip().rpartition("bootstrap.servers=")
        if found:
            return bootstrap
    raise SystemExit(f"The broker did not start; the command ended with code {process.wait()}.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Demo:
    """A run of the demo, and the samples of its progress."""

    folder: Path
    bootstrap: str
    changes: list[dict[str, Any]]
    master: str | None
    samples: list[Sample] = field(default_factory=list)
    killed: float = 0.0
    again: float = 0.0
    _began: float = field(default_factory=time.monotonic)
    _fed: int = 0
    _done: int = 0
    _reported: int = 0  # as _done, with the last change that closes the windows
    _counting: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def input(self) -> Path:
        return self.folder / "changes.jsonl"

    @property
    def output(self) -> Path:
        return self.folder / "counts.jsonl"

    def run(self) -> Counter[str]:
        """Run all steps. Returns the counts by folder in the output file. Raises SystemExit if the Spark job ends by
        itself."""
        self.input.touch()
        to = ("--bootstrap-server", self.bootstrap)
        for topic in (SOURCE, TARGET):
            subprocess.run(_parley("topics", *to, "--create", "--topic", topic, "--partitions", "1"), check=True)
        watcher = threading.Thread(target=self._watch)
        feeder = threading.Thread(target=self._feed)
        with self._connect():
            watcher.start()
            feeder.start()
            try:
                return self._count()
            finally:
                self._over.set()
                self._counting.set()
                feeder.join()
                watcher.join()

    @contextmanager
    def _connect(self) -> Iterator[None]:
        """Run Connect's file source and file sink in a separate process."""
        string = "org.apache.kafka.connect.storage.StringConverter"
        worker = {
            "bootstrap.servers": self.bootstrap,
            "key.converter": string,
            "value.converter": string,
            "offset.storage.file.filename": str(self.folder / "connect.offsets"),
            "listeners": f"http://127.0.0.1:{_free_port()}",
            "offset.flush.interval.ms": "500",  # the file sink flushes its file then
        }
        source = {"name": "source", "connector.class": "FileStreamSource", "file": str(self.input), "topic": SOURCE}
        sink = {"name": "sink", "connector.class": "FileStreamSink", "file": str(self.output), "topics": TARGET}
        paths = []
        for name, settings in (("worker", worker), ("source", source), ("sink", sink)):
            paths.append(self.folder / f"{name}.properties")
            paths[-1].write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        with (self.folder / "connect.log").open("wb") as log:
            words = _parley("connect", "standalone", *map(str, paths))
            process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait()

    def _feed(self) -> None:
        """Append the changes to the input file, piece by piece."""
        size = -(-len(self.changes) // _PIECES)
        with self.input.open("a") as file:
            for at in range(0, len(self.changes), size):
                some = self.changes[at : at + size]
                file.writelines(json.dumps(one) + "\n" for one in some)
                file.flush()
                self._fed = at + len(some)
                # Only the first piece is there until the job counts: Spark starts slowly.
                if not self._counting.wait(WAIT_S_MAX) or self._over.wait(FEED_S / _PIECES):
                    return
            # A last change, so late that the watermark closes all earlier windows.
            last = datetime.fromisoformat(self.changes[-1]["at"])
            end = _change("", int((last + timedelta(days=3)).timestamp()), "the end", 0, 0)
            file.write(json.dumps(end) + "\n")

    def _count(self) -> Counter[str]:
        """Run the Spark job, kill it after a third of the changes, and restart it. Returns the final counts."""
        with self._job() as job:
            self._follow(job, len(self.changes) // 3)
            print(f"\n$ kill -9 {job.pid}     # the Spark job, after it has counted {self._done} changes", flush=True)
            os.killpg(job.pid, signal.SIGKILL)
            self.killed = self._now()
            job.wait()
        with self._job() as job:
            self._follow(job, self._done + 1)
            self.again = self._now()
            self._follow(job, len(self.changes) + 1)
            counts = self._wait_for_counts()
            job.terminate()
            job.wait()
        return counts

    @contextmanager
    def _job(self) -> Iterator[subprocess.Popen[str]]:
        words = [sys.executable, "-m", "parley.pipeline.demo.changes", "--bootstrap-server", self.bootstrap]
        words += ["--source", SOURCE, "--target", TARGET, "--window", _window(self.changes)]
        words += [
            "--checkpoint-dir",
            str(self.folder / "checkpoint"),
            *(("--master", self.master) if self.master else ()),
        ]
        words += ["--at-once", str(max(50, len(self.changes) // 8))]
        print(f"\n$ {' '.join(['python', *words[1:]])}", flush=True)
        with (self.folder / "spark.log").open("ab") as log:
            job = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True, cwd=ROOT
            )
        try:
            yield job
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()

    def _follow(self, job: subprocess.Popen[str], until: int) -> None:
        """Print the job's progress until it has counted this many changes. Ends the program if the job ends before
        that."""
        if self._reported >= until:  # one report may cover all that is left
            return
        assert job.stdout is not None
        for line in job.stdout:
            report = json.loads(line)
            self._counting.set()
            batch, rows = report["batch"], report["rows"]
            self._reported = report["done"]
            self._done = min(self._reported, len(self.changes))
            print(
                f"  batch {batch:>3}  {rows:>5} changes counted: {self._done} of {len(self.changes)},"
                f" {self._fed} are in the file",
                flush=True,
            )
            if report["done"] >= until:
                return
        log = (self.folder / "spark.log").read_text(errors="replace")
        raise SystemExit(f"The Spark job ended with code {job.wait()}:\n{log[-4000:]}")

    def _now(self) -> float:
        """Return the seconds since the start of the run."""
        return time.monotonic() - self._began

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            self.samples.append(Sample(self._now(), self._fed, self._done))

    def _wait_for_counts(self) -> Counter[str]:
        """Wait until the output file counts all changes, for at most ``WAIT_S_MAX`` seconds. Returns the counts at the
        end, by folder."""
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            counts = _counts(self.output)
            if counts.total() >= len(self.changes) or time.monotonic() > deadline:
                return counts
            time.sleep(_SAMPLE_S)


def _counts(path: Path) -> Counter[str]:
    """Add up the changes of all windows by folder. A window that was written twice makes the sum too large."""
    counts: Counter[str] = Counter()
    if path.exists():
        for line in path.read_text().split("\n")[:-1]:
            one = json.loads(line)
            counts[one["folder"]] += one["changes"]
    return counts


def _report(changes: list[dict[str, Any]], counts: Counter[str]) -> int:
    expected = Counter(one["folder"] for one in changes)
    print(f"\n{'folder':<20}{'in the input':>14}{'by the pipeline':>18}")
    for folder in sorted(expected | counts):
        differs = "" if expected[folder] == counts[folder] else "   differs"
        print(f"{folder:<20}{expected[folder]:>14}{counts[folder]:>18}{differs}")
    print(f"{'total':<20}{expected.total():>14}{counts.total():>18}")
    if expected != counts:
        print("\nThe totals differ.", file=sys.stderr)
        return 1
    print("\nThe totals agree: the job was killed, and nothing was lost or counted twice.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
