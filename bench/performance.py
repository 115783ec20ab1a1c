"""``make bench``: measures families of figures beside Apache Kafka, and writes them to ``docs/performance.md``.

``make bench FAMILY="creation restart"`` measures only these families, and keeps the others on the page. Each family is
one command, which the page shows: it contains the medians, and each measured value, because a median of few values
hides the spread. The page names the machine, its load, the date and the commit of each family.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime

from bench.clusters import ROOT

PAGE = ROOT / "docs" / "performance.md"


@dataclass(frozen=True, slots=True)
class Family:
    """Figures that one command measures."""

    name: str
    title: str
    command: str
    """The module of ``bench`` and its arguments."""

    @property
    def words(self) -> list[str]:
        return ["python", "-m", *self.command.split()]


FAMILIES = (
    Family("load", "Produce and consume, start and memory", "bench --sizes 10,100,1024,102400 --partitions 1,6,50"),
    Family("replicated", "Three replicas, latency, pause of a failover", "bench --cluster"),
    Family("creation", "Creating and listing partitions", "bench.creation --rounds 3 --partitions 50000"),
    Family("creation-replicated", "Creating partitions with three replicas", "bench.creation --cluster --rounds 3"),
    Family("restart", "Restart with 50,000 partitions", "bench.partitions --partitions 50000"),
    Family("failover", "Death of a broker that leads a third of 10,000 partitions", "bench.failover"),
    Family("small-requests", "Processor time of small requests", "bench.small_requests"),
    Family("metadata", "Metadata of one topic and of all", "bench.metadata"),
    Family("groups", "Heartbeats and assignments of groups", "bench.groups"),
    Family("share-groups", "A share group", "bench.share_groups"),
    Family("offsets", "A million committed offsets after the death of their coordinator", "bench.offsets"),
    Family("transactions", "Transactions", "bench.transactions"),
    Family("transactions-replicated", "Transactions on three brokers", "bench.transactions --cluster"),
    Family("compaction", "Compaction of a million keys", "bench.compaction"),
    Family("security", "TLS, logins and ACLs", "bench.security"),
)
INTRODUCTION = """# Performance

`make bench` measures these figures and writes this page. `make bench FAMILY=creation` measures one family again. The
same client runs against Parley and Apache Kafka in turn, on a machine whose cores clients and brokers share. Processor
time is the most reliable figure: other work on the machine changes seconds and records per second.
"""
_SECTION = re.compile(r"<!-- family: (\S+) -->\n(.*?)\n*(?=<!-- family: |\Z)", re.DOTALL)


def sections(page: str) -> dict[str, str]:
    """Return the text of each family on the page, by the family's name."""
    return {name: text.strip() for name, text in _SECTION.findall(page)}


def page_of(found: dict[str, str]) -> str:
    """Return the page with these families, in the order of ``FAMILIES``."""
    parts = [INTRODUCTION]
    parts += [f"<!-- family: {each.name} -->\n{found[each.name]}\n" for each in FAMILIES if each.name in found]
    return "\n".join(parts)


def section(family: Family, output: str, conditions: str) -> str:
    """Return the text of a family: how it was measured, and the output of its command."""
    return f"## {family.title}\n\n`{' '.join(family.words)}`, {conditions}\n\n```text\n{output.strip()}\n```"


def conditions() -> str:
    """Describe the machine and the time of a measurement."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return (
        f"{datetime.now(UTC):%d %B %Y}, commit {commit.strip() or 'unknown'}, {os.cpu_count()} cores "
        f"({platform.machine()}, Linux {platform.release().partition('-')[0]}), Python {platform.python_version()}, "
        f"load of the machine {os.getloadavg()[1]:.1f}."
    )


def measure(family: Family) -> None:
    """Measure a family, and write it to the page. Raises ``CalledProcessError`` if its command fails."""
    print(f"--- {family.name}: {' '.join(family.words)}", file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, *family.words[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, flush=True)
    known = sections(PAGE.read_text()) if PAGE.exists() else {}
    PAGE.write_text(page_of({**known, family.name: section(family, done.stdout, conditions())}))


def main() -> None:
    names = [each.name for each in FAMILIES]
    parser = argparse.ArgumentParser(prog="python -m bench.performance", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"{', '.join(names)}; all by default")
    given = parser.parse_args()
    for name in given.families:
        if name not in names:
            parser.error(f"no family is named {name}: choose from {', '.join(names)}")
    for family in FAMILIES:
        if not given.families or family.name in given.families:
            measure(family)


if __name__ == "__main__":
    main()
