"""``make bench``: measures families of figures beside other brokers, and writes them to ``docs/performance.md``.

``make bench FAMILY="creation restart"`` measures only these families, and keeps the others on the page. Each family is
one command, which the page shows: it contains the medians, and each measured value, because a median of few values
hides the spread. The page names the machine, its load, the date, the versions and the commit of each family.

A family that fails or takes too long does not stop the others, and the page keeps its last figures. ``--tiny`` tries
each family with little work, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka

from bench.clusters import ROOT
from bench.figures import FIGURES_FILE
from bench.pictures import Medians, picture
from parley.compiled import status

DOCS = ROOT / "docs"
PAGE = DOCS / "performance.md"
FAMILY_S = 1800
"""The time that one family may take. Most take two to four minutes on an idle machine."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family: related figures that one command measures."""

    name: str
    group: str
    """The picture that shows the figures."""
    title: str
    command: str
    """The module of ``bench`` and its arguments."""
    tiny: str
    """Arguments that reduce the work to seconds."""

    @property
    def words(self) -> list[str]:
        return ["python", "-m", *self.command.split()]


RECORDS, REQUESTS, PARTITIONS = "Records", "Small requests and connections", "Partitions"
GROUPS, REPLICAS, SECURITY = "Groups and transactions", "Three replicas", "Security"
PIPELINE = "Pipeline"
_ONE = "--rounds 1"
FAMILIES = (
    Family(
        "load",
        RECORDS,
        "Produce and consume, start and memory",
        "bench --rounds 2 --mb 200",
        f"{_ONE} --mb 1 --sizes 100",
    ),
    Family(
        "load-sizes",
        RECORDS,
        "Produce and consume records of 10 B and 100 KiB",
        "bench --rounds 2 --mb 100 --sizes 10,102400",
        f"{_ONE} --mb 1 --partitions 1",
    ),
    Family(
        "load-partitions",
        RECORDS,
        "Produce to and consume 50 partitions",
        "bench --rounds 2 --mb 200 --partitions 50",
        f"{_ONE} --mb 1 --sizes 100",
    ),
    Family("cores", RECORDS, "More than one core", "bench.cores --rounds 2", f"{_ONE} --mb 1 --sizes 100"),
    Family("compression", RECORDS, "Compression and acks", "bench.compression --rounds 2", f"{_ONE} --mb 1"),
    Family("fan-out", RECORDS, "One writer and 50 readers", "bench.fan_out --rounds 3", f"{_ONE} --mb 2 --readers 5"),
    Family(
        "catch-up",
        RECORDS,
        "Readers of a log five times the memory, beside a live tail",
        "bench.catch_up --rounds 1",
        f"{_ONE} --memory 768 --seconds 1",
    ),
    Family(
        "compaction", RECORDS, "Compaction of a million keys", "bench.compaction --rounds 1", f"{_ONE} --keys 400000"
    ),
    Family(
        "verification",
        RECORDS,
        "Verification of records, before and after a restart",
        "bench.verification",
        f"{_ONE} --bytes 10000000",
    ),
    Family(
        "copies",
        RECORDS,
        "Ways to send a file to a socket",
        "bench.copies --rounds 10 --bytes 300000000",
        f"{_ONE} --bytes 3000000",
    ),
    Family(
        "small-requests",
        REQUESTS,
        "Processor time of small requests",
        "bench.small_requests --rounds 2 --count 10000",
        f"{_ONE} --count 50",
    ),
    Family(
        "connections",
        REQUESTS,
        "One record per request on 1, 50 and 1,000 connections",
        "bench.connections --rounds 1",
        f"{_ONE} --seconds 1 --counts 1 20",
    ),
    Family("latency", REQUESTS, "Latency", "bench.latency --rounds 2", f"{_ONE} --seconds 1"),
    Family(
        "idle-connections",
        REQUESTS,
        "10,000 idle connections",
        "bench.connections --rounds 1 --idle 10000 --seconds 10",
        "--idle 100 --seconds 1",
    ),
    Family(
        "metadata",
        REQUESTS,
        "Metadata of one topic and of all",
        "bench.metadata --rounds 1 --count 4000",
        "--count 800 --partitions 50",
    ),
    Family(
        "creation",
        PARTITIONS,
        "Creating and listing partitions",
        "bench.creation --rounds 1 --partitions 10000",
        "--partitions 1000",
    ),
    Family(
        "creation-replicated",
        PARTITIONS,
        "Creating partitions with three replicas",
        "bench.creation --cluster --rounds 1 --partitions 3000",
        "--partitions 0",
    ),
    Family(
        "restart",
        PARTITIONS,
        "Restart with 10,000 partitions",
        "bench.partitions --rounds 1 --partitions 10000",
        "--partitions 200 --per-topic 100 --used 20",
    ),
    Family(
        "failover",
        PARTITIONS,
        "Death of a broker that leads a third of 10,000 partitions",
        "bench.failover --rounds 1",
        "--partitions 1000",
    ),
    Family(
        "groups",
        GROUPS,
        "Heartbeats and assignments of groups",
        "bench.groups --rounds 1 --members 2000 --seconds 10 --assigned 200 --partitions 2000",
        "--members 300 --groups 2 --seconds 5 --assigned 5 --partitions 50",
    ),
    Family(
        "consumers",
        GROUPS,
        "200 consumers in 20 groups",
        "bench.consumers --rounds 1",
        "--consumers 8 --groups 2 --seconds 1",
    ),
    Family(
        "share-groups", GROUPS, "A share group", "bench.share_groups --rounds 2 --total 100000000", "--total 2000000"
    ),
    Family(
        "offsets",
        GROUPS,
        "A million committed offsets after the death of their coordinator",
        "bench.offsets --rounds 1",
        "--offsets 10000",
    ),
    Family(
        "transactions",
        GROUPS,
        "Transactions",
        "bench.transactions --rounds 1",
        "--producers 2 --offered 10 --seconds 1 --mb 1",
    ),
    Family(
        "transactions-replicated",
        GROUPS,
        "Transactions on three brokers",
        "bench.transactions --cluster --rounds 1 --offered 50",
        "--producers 2 --offered 10 --seconds 1 --mb 1",
    ),
    Family(
        "replicated",
        REPLICAS,
        "Three replicas, latency, pause of a failover",
        "bench --cluster --rounds 2 --mb 200",
        f"{_ONE} --mb 4 --sizes 100",
    ),
    Family(
        "security",
        SECURITY,
        "TLS, logins and ACLs",
        "bench.security --rounds 1 --mb 200",
        "--mb 1 --sizes 100 --count 16 --requests 400 --seconds 1",
    ),
    Family(
        "pipeline",
        PIPELINE,
        "Spark's Kafka connector and Parley's format on Spark, and a mirror",
        "bench.pipeline --rounds 2",
        f"{_ONE} --rows 20000 --latency-seconds 2",
    ),
    Family(
        "loading",
        PIPELINE,
        "parley load and eight lines of Structured Streaming",
        "bench.loading --rounds 2",
        f"{_ONE} --records 20000",
    ),
    Family("connect", PIPELINE, "64 sink tasks of Connect", "bench.connect", "--tasks 4 --records 2000"),
)
INTRODUCTION = """# Performance

`make bench` measures these figures and writes this page. `make bench FAMILY=creation` measures one family again. The
same client runs against Parley and the other brokers in turn, on a machine whose cores clients and brokers share.
Processor time is the most reliable figure: other work on the machine changes seconds and records per second.

Tansu and kfake keep records in memory only, and are measured if they serve a family. Each section has the command, the
date, the machine and its load, the versions, the medians with the ratio of Parley to each other broker, and all values.
A family without a section has not been measured yet.
"""
_SECTION = re.compile(r"<!-- family: (\S+) -->\n(.*?)\n*(?=<!-- family: |\Z)", re.DOTALL)
_FIGURES = re.compile(r"<!-- figures: (.*) -->")


def sections(page: str) -> dict[str, str]:
    """Return the text of each family on the page, by the family's name."""
    return {name: text.strip() for name, text in _SECTION.findall(page)}


def page_of(found: dict[str, str]) -> str:
    """Return the page with these families, in the order of ``FAMILIES``, after the pictures of their groups."""
    parts = [INTRODUCTION]
    for group in figures_of(found):
        text = f"Parley compared with other brokers: {group.lower()}. The sections below have the figures."
        parts.append(f"![{text}]({picture_name(group)})\n")
    parts += [f"<!-- family: {each.name} -->\n{found[each.name]}\n" for each in FAMILIES if each.name in found]
    return "\n".join(parts)


def picture_name(group: str) -> str:
    """Return the file name of a group's picture."""
    return f"performance-{group.lower().replace(' ', '-')}.svg"


def figures_of(found: dict[str, str]) -> dict[str, dict[str, Medians]]:
    """Return the medians in these sections, by group and title of the family."""
    groups: dict[str, dict[str, Medians]] = {}
    for family in FAMILIES:
        if known := _FIGURES.search(found.get(family.name, "")):
            groups.setdefault(family.group, {})[family.title] = json.loads(known[1])
    return groups


def section(family: Family, output: str, conditions: str, figures: str = "") -> str:
    """Return the text of a family: how it was measured, and the output of its command."""
    text = f"## {family.title}\n\n`{' '.join(family.words)}`, {conditions}\n\n```text\n{output.strip()}\n```"
    return f"{text}\n\n<!-- figures: {figures} -->" if figures else text


def conditions() -> str:
    """Describe the machine, the time and the versions of a measurement."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.partition("\n")[0]
    version = re.search(r'"(.+?)"', java)
    return (
        f"{datetime.now(UTC):%d %B %Y}, commit {commit.strip() or 'unknown'}, {os.cpu_count()} cores "
        f"({platform.machine()}, Linux {platform.release().partition('-')[0]}), Python {platform.python_version()}, "
        f"librdkafka {confluent_kafka.libversion()[0]}, Java {version[1] if version else 'none'}, "
        f"load average before the run {os.getloadavg()[1]:.1f}."
    )


def measure(family: Family, *, tiny: bool) -> str:
    """Measure a family, and write it to the page. Returns why it failed, or an empty string."""
    under = conditions()
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        file = Path(folder) / "figures.json"
        extra = family.tiny.split() if tiny else []
        output, failure = _run([sys.executable, *family.words[1:], *extra], file)
        figures = file.read_text() if file.exists() else ""
    print(output, flush=True)
    if not failure and not json.loads(figures or "{}"):
        failure = "it has no figures"
    if not failure and not tiny:
        known = sections(PAGE.read_text()) if PAGE.exists() else {}
        write({**known, family.name: section(family, output, under, figures)})
    return failure


def write(found: dict[str, str]) -> None:
    """Write the page and its pictures."""
    PAGE.write_text(page_of(found))
    for group, families in figures_of(found).items():
        (DOCS / picture_name(group)).write_text(picture(group, families))


def _run(command: list[str], figures: Path) -> tuple[str, str]:
    """Run a family's command. Returns its output, and why it failed. Ends all its processes if it takes too long."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, FIGURES_FILE: str(figures)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=FAMILY_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return "", f"it takes longer than {FAMILY_S} s"
            raise
    return output, f"exit code {process.returncode}" if process.returncode else ""


def main(words: Sequence[str] | None = None) -> int:
    names = [each.name for each in FAMILIES]
    parser = argparse.ArgumentParser(prog="python -m bench.performance", description=__doc__)
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help=f"{', '.join(names)}; all by default, or in this order"
    )
    parser.add_argument("--tiny", action="store_true", help="try with little work, and write nothing")
    given = parser.parse_args(words)
    for name in given.families:
        if name not in names:
            parser.error(f"no family is named {name}: choose from {', '.join(names)}")
    if not given.tiny and "interpreted" in status().values():  # small requests would take twice the processor time
        parser.error("modules of Parley run interpreted: `make build` compiles them")
    failures = {}
    by_name = {family.name: family for family in FAMILIES}
    for name in given.families or names:
        print(f"--- {name}: {' '.join(by_name[name].words)}", file=sys.stderr, flush=True)
        if failure := measure(by_name[name], tiny=given.tiny):
            failures[name] = failure
            print(f"--- {name} failed: {failure}", file=sys.stderr, flush=True)
    for name, failure in failures.items():
        print(f"{name}: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
