"""Two brokers that keep records in memory: Tansu (Rust) and kfake (Go). ``python -m bench.peers`` builds them.

They come from the registries of their languages, are built into the cache once, and are left out of the tables if that
is not possible. They sync nothing, and kfake is a library for tests: their figures show the cost of the protocol alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.clusters import ROOT, Measured

TANSU_VERSION, KFAKE_VERSION = "0.6.0", "v0.0.0-20260918054303-01f206a7e32c"
FRANZ_GO_VERSION = "v1.22.3"
"""The client library that kfake needs; its own go.mod names one that is too old."""
TANSU = ROOT / ".cache" / f"tansu-{TANSU_VERSION}"
KFAKE = ROOT / ".cache" / f"kfake-{KFAKE_VERSION.rpartition('-')[2]}"
BUILD_S = 3600
_PACKAGE = "github.com/twmb/franz-go"
_MAIN = """package main

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port))
	if err != nil {
		panic(err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	<-ended
	cluster.Close()
}
"""


class Tansu(Measured):
    """Tansu with its storage in memory."""

    name = f"Tansu {TANSU_VERSION}"
    stop_seconds_max = 10.0

    def command(self) -> list[str]:
        url = f"tcp://{self.bootstrap}"
        words = ["broker", "--listener-url", url, "--advertised-listener-url", url]
        return [str(TANSU / "tansu"), *words, "--storage-engine", "memory://tansu/"]


class KFake(Measured):
    """kfake, a library that behaves like a cluster."""

    name = "kfake"

    def command(self) -> list[str]:
        return [str(KFAKE / "kfake"), str(self.port)]


def installed_peers() -> list[type[Measured]]:
    """Return the peers that are in the cache."""
    return [*([Tansu] if (TANSU / "tansu").exists() else []), *([KFake] if (KFAKE / "kfake").exists() else [])]


def build_tansu(folder: Path) -> None:
    """Build Tansu with Cargo. Raises ``OSError`` or ``SubprocessError`` if that fails or takes longer than
    ``BUILD_S``."""
    words = ["tansu", "--version", TANSU_VERSION, "--features", "dynostore", "--locked", "--root", str(folder)]
    subprocess.run(["cargo", "install", "--quiet", *words], check=True, timeout=BUILD_S)
    (folder / "bin" / "tansu").rename(folder / "tansu")


def build_kfake(folder: Path) -> None:
    """Build a program around kfake with Go. Raises ``OSError`` or ``SubprocessError`` if a step fails or takes longer
    than ``BUILD_S``."""
    (folder / "main.go").write_text(_MAIN)
    go = shutil.which("go") or "/usr/local/go/bin/go"
    needed = [f"{_PACKAGE}@{FRANZ_GO_VERSION}", f"{_PACKAGE}/pkg/kfake@{KFAKE_VERSION}"]
    for words in (["mod", "init", "peer"], ["get", *needed], ["build", "-o", "kfake", "."]):
        subprocess.run([go, *words], cwd=folder, check=True, timeout=BUILD_S)


def main() -> None:
    for target, program, build in ((TANSU, "tansu", build_tansu), (KFAKE, "kfake", build_kfake)):
        if (target / program).exists():
            continue
        print(f"Building {target.name}, which takes some minutes.", file=sys.stderr, flush=True)
        target.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.") as temporary:
            folder = Path(temporary) / "new"
            folder.mkdir()
            try:
                build(folder)
            except (OSError, subprocess.SubprocessError) as error:
                print(f"{program} is left out: {error}", file=sys.stderr, flush=True)
                continue
            folder.rename(target)


if __name__ == "__main__":
    main()
