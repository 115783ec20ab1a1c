"""Generate docs/doctor.md: an example, the table of findings, and a section for each finding."""

from __future__ import annotations

from typing import Final

from parley.tools.cli.invocation import INCOMPLETE
from parley.tools.doctor.findings import Check
from parley.tools.doctor.report import ERRORS, HEALTHY, WARNINGS
from parley.tools.doctor.steps import LIMIT_S, STEP_S
from parley.tools.doctor.table import CHECKS

_INTRODUCTION: Final = f"""\
# The doctor

`make docs` generates this page from the table in `parley/tools/doctor/table.py`. A test runs the commands.

`parley doctor` finds out what is wrong with a cluster, or with a broker that does not start, and what to do next. It
changes nothing.

| exit code | meaning |
|---|---|
| {HEALTHY} | nothing is wrong |
| {WARNINGS} | there are warnings |
| {ERRORS} | there are errors |
| {INCOMPLETE} | no problem was found, but not everything could be examined: no response, or a timeout |

As with all commands, the exit code for invalid options is 1. `--output json` and `--output yaml` are for programs: each
finding has a name, which never changes, the severity, a sentence, the time since when (if known), the evidence, what to
do next, and a link to this page. `notExamined` lists what could not be examined, whatever the exit code.

The whole examination takes at most `--time-limit` seconds ({LIMIT_S:g}). Everything else is then listed as not
examined, and the findings so far are shown.

## An example

A running broker is examined through Kafka's protocol. The doctor also examines what only Parley has, such as its
metrics:

```console
$ parley start
...
$ parley doctor --bootstrap-server 127.0.0.1:9092
Cluster ... (Parley): 1 broker, 0 topics, 0 partitions
Not examined
certificates: this client does not use TLS
coordination store: name a broker's properties file, or one with coordination.url, with --config to examine it
Healthy: ... checks.
```

A second broker does not start. Its file contains a misspelled key, and the port of the first broker:

```console
$ echo 'listeners=PLAINTEXT://127.0.0.1:9092' > second.properties
$ echo 'log.dirs=second-data' >> second.properties
$ echo 'log.retention.hour=24' >> second.properties
$ parley doctor second.properties || echo "exit code $?"
second.properties: the broker does not run here
Errors
port-taken: port 9092 of PLAINTEXT is taken by process ...
seen bind(127.0.0.1:9092): Address already in use
next stop it (kill ...), or give PLAINTEXT another port in listeners
docs docs/doctor.md#port-taken
Warnings
config-unknown-key: log.retention.hour is not a configuration key: did you mean log.retention.hours?
seen second.properties
next rename log.retention.hour to log.retention.hours in second.properties
docs docs/doctor.md#config-unknown-key
Not examined
coordination store: no broker has used the embedded store yet
1 error, 1 warning.
exit code 2
```

## A cluster

`parley doctor --bootstrap-server` examines any Kafka cluster, as a client that may describe brokers, topics, groups and
transactions (`--command-config`). It reads the brokers' metrics if their configuration has a `metrics.listener` with a
port that this machine reaches. If the port is 0 (any free port), it finds the port of a process on this machine.
`--metrics ID=host:port` names another address, with `https://` and `user:password@` if needed.
`--config broker.properties` adds the coordination store, as this machine reaches it. If the brokers have no file, one
with the line `coordination.url=...` is enough.

Each step has a limit of {STEP_S:g} to {2 * STEP_S:g} seconds, so a broker that hangs becomes a finding and does not
delay the rest. Groups with a lag and reassignments are sampled twice, `--interval` seconds apart (10). The interval
should be longer than `auto.commit.interval.ms` of the consumers (5 seconds unless set): otherwise a group may seem
stuck. If there are more than 500 groups, 500 are described.

With Apache Kafka's brokers, the checks marked "Parley" below are skipped and listed as not examined: the doctor does
not read JMX, and Kafka has no coordination store. That does not change the exit code.

## A broker on this machine

`parley doctor broker.properties` examines the file and this machine, whether the broker runs or not: the settings, the
ports, the log directories, the newest 256 MiB of the segments, the certificates, the limit of open files, the names in
`advertised.listeners`, and the store. Run it as the broker's user, so that it has the same permissions. Only root sees
the processes of other users.

## Findings

| finding | severity | question | in a cluster | of a file |
|---|---|---|---|---|
"""


def doctor_page() -> str:
    """Return the whole page, as Markdown."""
    rows = [
        f"| [`{row.name}`](#{row.name}) | {row.severity.name.lower()} | {row.asks} | {_where(row)} |" for row in CHECKS
    ]
    return _INTRODUCTION + "\n".join(rows) + "\n" + "".join(map(_section, CHECKS))


def _where(row: Check) -> str:
    cluster = "" if row.in_cluster is None else "Parley" if row.of_parley else "yes"
    return f"{cluster} | {'yes' if row.on_machine is not None else ''}"


def _section(row: Check) -> str:
    needs = ", ".join(part.value for part in row.needs)
    steps = "\n".join(f"* {_step(each)}" for each in row.next)
    return f"\n### {row.name}\n\n{row.asks} From: {needs}. What to do:\n\n{steps}\n"


def _step(text: str) -> str:
    """Return a step as Markdown. A command is shown as code."""
    command, comma, rest = text.partition(", ")
    return f"`{command}`{comma}{rest}" if command.startswith("parley ") else text
