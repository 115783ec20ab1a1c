"""The ``parley`` command: one module per subcommand, imported when the subcommand runs.

Rules for every command:

1. Flags, output and exit codes are those of Kafka's tool for the same purpose: 0 on success, 1 on failure.
2. Data goes to standard output, everything else to standard error. Commands that list or describe have ``--output``
   (``output.py``), commands that print while they run have ``--json``.
3. An error message says what is wrong and what to do about it.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import NamedTuple

from parley.tools.cli.invocation import guarded, open_streams, run
from parley.version import VERSION


class Command(NamedTuple):
    """A subcommand: its module, a one-line summary, and the Kafka tool it replaces (empty if there is none)."""

    module: str
    summary: str
    kafka_tool: str


COMMANDS: dict[str, Command] = {
    "start": Command("start", "start a broker", "kafka-server-start"),
    "topics": Command("topics", "create, list, describe, alter and delete topics", "kafka-topics"),
    "produce": Command("produce", "send each line of standard input to a topic as a record", "kafka-console-producer"),
    "consume": Command(
        "consume", "print the records of a topic", "kafka-console-consumer, kafka-console-share-consumer"
    ),
    "tail": Command("tail", "show the last records of topics, and each new one, for people to read", ""),
    "groups": Command("groups", "list, describe, reset and delete consumer groups", "kafka-consumer-groups"),
    "streams-groups": Command(
        "streams_groups", "list, describe, reset and delete streams groups", "kafka-streams-groups"
    ),
    "share-groups": Command("share_groups", "list, describe, reset and delete share groups", "kafka-share-groups"),
    "transactions": Command(
        "transactions", "show transactions, find hanging ones, and abort them", "kafka-transactions"
    ),
    "configs": Command("configs", "show and change the configuration of topics, brokers and groups", "kafka-configs"),
    "acls": Command("acls", "list, add and remove ACLs", "kafka-acls"),
    "delegation-tokens": Command(
        "delegation_tokens", "create, renew, expire and show delegation tokens", "kafka-delegation-tokens"
    ),
    "security": Command("security", "show what a configuration or a cluster leaves open, and how to close it", ""),
    "offsets": Command(
        "offsets", "show the first or last offsets of partitions, or those at a time", "kafka-get-offsets"
    ),
    "delete-records": Command("delete_records", "delete records up to an offset", "kafka-delete-records"),
    "elect-leaders": Command("elect_leaders", "elect leaders of partitions", "kafka-leader-election"),
    "reassign": Command("reassign", "move partitions between brokers and log directories", "kafka-reassign-partitions"),
    "balance": Command("balance", "balance replicas and leaders over brokers, or empty a broker", ""),
    "profile": Command("profile", "keep the addresses and the logins of clusters under names", ""),
    "cluster": Command("cluster", "show the cluster's id and brokers, unregister a broker", "kafka-cluster"),
    "features": Command("features", "show and change the levels of the cluster's features", "kafka-features"),
    "log-dirs": Command("log_dirs", "show the brokers' log directories and the partitions in them", "kafka-log-dirs"),
    "metadata": Command("metadata", "show the controller, brokers, leaders and replicas", "kafka-metadata-quorum"),
    "console": Command("console", "show a cluster in a browser, and change it", ""),
    "coordination": Command("coordination", "check, show, back up and migrate the coordination store", ""),
    "dump-log": Command("dump_log", "print and check segment, index and checkpoint files", "kafka-dump-log"),
    "log-repair": Command("log_repair", "show the committed records that replicas had to remove", ""),
    "connect": Command(
        "connect", "run connectors to and from other systems", "connect-standalone, connect-distributed"
    ),
    "registry": Command("registry", "serve schemas of Avro, JSON Schema and Protobuf", "schema-registry-start"),
    "mirror": Command("mirror", "copy topics from one cluster to another", "connect-mirror-maker, kafka-mirror-maker"),
    "load": Command("load", "export topics to files and tables, and import them again", ""),
    "top": Command("top", "show live what a cluster does: brokers, topics by rate, groups by lag", ""),
    "doctor": Command("doctor", "show what is wrong with a cluster or a broker, and what to do next", ""),
    "support-bundle": Command(
        "support_bundle", "collect in one archive, without secrets, what helps to diagnose a problem", ""
    ),
    "check": Command("check", "check that a cluster loses no records while you break it", ""),
    "perf": Command(
        "perf", "measure producer and consumer throughput, and latency", "kafka-*-perf-test, kafka-e2e-latency"
    ),
    "simulate": Command("simulate", "test whole clusters under simulated faults and virtual time", ""),
    "zookeeper-security-migration": Command(
        "zookeeper_security_migration",
        "restrict or open access to a cluster's tree in ZooKeeper",
        "zookeeper-security-migration",
    ),
    "completion": Command("completion", "print the script for completion in bash, zsh and fish", ""),
    "version": Command("version", "show versions, and which modules are compiled", ""),
    "docs": Command("docs", "generate the documentation pages that are derived from code", ""),
}

_MEANT: dict[str, tuple[str, ...]] = {
    "status": ("doctor", "metadata", "top"),
    "health": ("doctor",),
    "brokers": ("metadata", "cluster"),
    "migrate": ("coordination migrate",),
    "users": ("configs", "acls"),
}
"""Words that users try, and the commands for them."""
_USAGE = "Usage: parley COMMAND [OPTIONS]     (parley COMMAND --help describes a command)"


def main(arguments: list[str] | None = None) -> None:
    """Run one subcommand and exit with its exit code."""
    open_streams()
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help", "help"):
        sys.exit(guarded(lambda: _show_overview(0 if words else 1)))
    name = "version" if words[0] == "--version" else words[0]
    command = COMMANDS.get(name)
    if command is None:
        print(f"parley: unknown command '{name}'.{_suggestion(name)} `parley --help` lists all.", file=sys.stderr)
        sys.exit(1)
    gc.disable()  # imports allocate much and free nothing
    module = import_module(f"parley.tools.cli.{command.module}")
    if name == "start":
        # `start` parses its options itself: importing typer would make a broker's start 10% slower. It also has more
        # to import, and enables the collector afterwards.
        code = guarded(lambda: _version() if "--version" in words[1:] else module.main(words[1:]))
        gc.enable()  # for a program that called this function, if the broker did not start
        sys.exit(code)
    gc.enable()
    sys.exit(run(module.app, f"parley {name}", words[1:]))


def _suggestion(name: str) -> str:
    """Return a question that names the commands that the user may have meant, or an empty string."""
    import difflib

    meant = _MEANT.get(name) or difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.7)
    return f" Did you mean {' or '.join(f'`parley {each}`' for each in meant)}?" if meant else ""


def _version() -> int:
    print(VERSION)
    return 0


def _show_overview(code: int) -> int:
    print(_overview())
    return code


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [_USAGE, ""]
    for name, command in COMMANDS.items():
        like = f"  (as {command.kafka_tool})" if command.kafka_tool else ""
        lines.append(f"  {name:<{width}}  {command.summary}{like}")
    lines += ["", "To begin: `parley start` in one terminal, then in another", ""]
    lines += [
        "  parley topics --create --topic greetings",
        "  echo hello | parley produce --topic greetings",
        "  parley consume --topic greetings --from-beginning --max-messages 1",
    ]
    return "\n".join(lines)
