"""The ``parley`` command: one module per subcommand, imported when it is called.

Rules for every command: the flags, output and exit codes are those of Kafka's tool of the same purpose (0 done, 1 not
done); data goes to standard output, everything else to standard error; ``--json`` where the output is data; an error
says what to do about it.
"""

from __future__ import annotations

import difflib
import sys
from importlib import import_module
from typing import NamedTuple

from parley.tools.cli.invocation import guarded, open_streams, run


class Command(NamedTuple):
    """A subcommand: its module, and what it does in one line."""

    module: str
    summary: str
    kafka_tool: str


COMMANDS: dict[str, Command] = {
    "start": Command("start", "start a broker", "kafka-server-start"),
    "topics": Command("topics", "create, list, describe, alter and delete topics", "kafka-topics"),
    "produce": Command("produce", "send lines of standard input to a topic", "kafka-console-producer"),
    "consume": Command("consume", "print the records of a topic", "kafka-console-consumer"),
    "groups": Command("groups", "list, describe, reset and delete consumer groups", "kafka-consumer-groups"),
    "configs": Command("configs", "show and change configuration of topics and brokers", "kafka-configs"),
    "offsets": Command("offsets", "show the first, last or timed offsets of partitions", "kafka-get-offsets"),
    "delete-records": Command("delete_records", "delete records up to an offset", "kafka-delete-records"),
    "elect-leaders": Command("elect_leaders", "have partitions elect a leader", "kafka-leader-election"),
    "reassign": Command("reassign", "move partitions between brokers and disks", "kafka-reassign-partitions"),
    "cluster": Command("cluster", "show the cluster's id and brokers, forget one", "kafka-cluster"),
    "log-dirs": Command("log_dirs", "show what is in the brokers' log directories", "kafka-log-dirs"),
    "metadata": Command("metadata", "show controller, brokers, leaders and replicas", "kafka-metadata-quorum"),
    "coordination": Command("coordination", "try, show, save and change the coordination store", ""),
    "dump-log": Command("dump_log", "print what is in segment and index files", "kafka-dump-log"),
    "connect": Command(
        "connect", "run connectors to and from other systems", "connect-standalone, connect-distributed"
    ),
    "mirror": Command("mirror", "copy topics from clusters to clusters", "connect-mirror-maker, kafka-mirror-maker"),
    "load": Command("load", "load topics into files and tables, and back", ""),
    "check": Command("check", "break a cluster, and see whether it loses anything", ""),
    "perf": Command("perf", "measure producing, consuming and latency", "kafka-*-perf-test, kafka-e2e-latency"),
    "simulate": Command("simulate", "look for broken promises in clusters under virtual time", ""),
    "zookeeper-security-migration": Command(
        "zookeeper_security_migration", "lock or unlock a tree in ZooKeeper", "zookeeper-security-migration"
    ),
    "version": Command("version", "show versions and which modules run compiled", ""),
    "docs": Command("docs", "write the documentation pages that come from code", ""),
}

_USAGE = "Usage: parley COMMAND [OPTIONS]     (parley COMMAND --help explains one)"


def main(arguments: list[str] | None = None) -> None:
    """Run one subcommand and exit with its code."""
    open_streams()
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help", "help"):
        sys.exit(guarded(lambda: _show_overview(0 if words else 1)))
    name = "version" if words[0] == "--version" else words[0]
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        print(f"parley: there is no command '{name}'.{hint}\n\n{_overview()}", file=sys.stderr)
        sys.exit(1)
    module = import_module(f"parley.tools.cli.{command.module}")
    if name == "start":
        # It parses its own few options: the option parser of the others costs a tenth of a broker's start.
        sys.exit(guarded(lambda: _version() if "--version" in words[1:] else module.main(words[1:])))
    sys.exit(run(module.app, f"parley {name}", words[1:]))


def _version() -> int:
    from importlib.metadata import version

    print(version("parley-broker"))
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
