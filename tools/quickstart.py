"""``make quickstart``: a broker, a real file through it, and a comparison of what came back.

Every step is a command that a person could type; each is printed before it runs. The file is the one named on the
command line, else this repository's own git log, else its README.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from tools.cli.produce import lines_of

TOPIC = "quickstart"
START_SECONDS_MAX = 30


def main(arguments: list[str]) -> int:
    """Run the story; 0 when every line came back, in order."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="parley-quickstart-") as folder:
        source = _input(arguments, Path(folder))
        with source.open("rb") as text:
            lines = list(lines_of(text))
        print(f"The input is {source}: {len(lines)} lines, {source.stat().st_size} bytes.\n")
        with _broker(Path(folder) / "data") as bootstrap:
            consumed = _through(bootstrap, source, len(lines))
        print(f"\nThe broker has stopped. Its data lay in {folder}/data and goes with this program.")
    return _report(lines, consumed, time.monotonic() - started)


def _input(arguments: list[str], folder: Path) -> Path:
    if arguments:
        if not Path(arguments[0]).is_file():
            raise SystemExit(f"{arguments[0]} is not a file: name one whose lines are to be sent.")
        return Path(arguments[0])
    log = subprocess.run(["git", "log", "--stat"], capture_output=True, check=False)
    if log.returncode == 0 and log.stdout:
        path = folder / "git-log.txt"
        path.write_bytes(log.stdout)
        return path
    return Path(__file__).parent.parent / "README.md"


def _parley(*words: str) -> list[str]:
    print(f"\n$ parley {' '.join(words)}", flush=True)
    return [sys.executable, "-m", "tools.cli", *words]


@contextmanager
def _broker(data: Path) -> Iterator[str]:
    """A broker in a process of its own, on a free port, for as long as the context lasts."""
    settings = ("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={data}", "logging.level=warning")
    words = ("start", *(word for setting in settings for word in ("--override", setting)))
    process = subprocess.Popen(_parley(*words), stdout=subprocess.PIPE, text=True)
    try:
        yield _wait_until_ready(process)
    finally:
        process.terminate()
        if process.wait(timeout=START_SECONDS_MAX) != 0:
            print(f"The broker ended with code {process.returncode}.", file=sys.stderr)


def _wait_until_ready(process: subprocess.Popen[str]) -> str:
    """Show what the broker says until it names its address; answers the address."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        _, found, bootstrap = line.strip().rpartition("bootstrap.servers=")
        if found:
            return bootstrap
    raise SystemExit(f"The broker did not start; it ended with code {process.wait()}.")


def _through(bootstrap: str, source: Path, count: int) -> list[bytes]:
    """Create the topic, send the file's lines, read them back in another process."""
    to = ("--bootstrap-server", bootstrap)
    subprocess.run(
        _parley("topics", *to, "--create", "--topic", TOPIC, "--partitions", "1", "--replication-factor", "1"),
        check=True,
    )
    with source.open("rb") as text:
        subprocess.run(_parley("produce", *to, "--topic", TOPIC), stdin=text, check=True)
    subprocess.run(_parley("topics", *to, "--describe", "--topic", TOPIC), check=True)
    subprocess.run(_parley("offsets", *to, "--topic", TOPIC), check=True)
    reading = _parley(
        "consume", *to, "--topic", TOPIC, "--from-beginning", "--max-messages", str(count), "--timeout-ms", "20000"
    )
    output = subprocess.run(reading, stdout=subprocess.PIPE, check=True).stdout
    return list(lines_of(BytesIO(output)))


def _report(sent: list[bytes], received: list[bytes], seconds: float) -> int:
    digests = [hashlib.sha256(b"\n".join(lines)).hexdigest()[:16] for lines in (sent, received)]
    print(f"\nproduced {len(sent):>8} records   sha256 {digests[0]}")
    print(f"consumed {len(received):>8} records   sha256 {digests[1]}")
    if sent == received:
        print(f"\nEvery line came back, in order, in {seconds:.1f} s altogether.")
        return 0
    first = next((i for i, pair in enumerate(zip(sent, received, strict=False)) if pair[0] != pair[1]), len(received))
    print(f"\nThe lines differ from line {first + 1} on.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
