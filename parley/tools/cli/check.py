"""``parley check``: produce and consume while the operator breaks the cluster, then report lost records."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from parley.tools.cli.app import App
from parley.tools.cli.common_options import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    CommandConfig,
    OutputFormat,
    client_properties,
)
from parley.tools.cli.invocation import FAILED, INCOMPLETE, CommandError
from parley.tools.cli.output import Format, print_data

if TYPE_CHECKING:
    from parley.tools.checker import Trial, Verdict

app = App(
    "Produce to and consume from any Kafka cluster while you break it, and check the result.\n\n"
    "Producers send with acks=all and log every acknowledgement; consumers log every record. At the end every "
    "partition is read again: no acknowledged record may be missing, and no record may be reordered, duplicated or "
    "invented. With --transactions, each transaction must be visible as a whole or not at all. The exit code is 1 if "
    "a rule is broken, and 3 if no transaction was committed.",
    examples=[
        ("parley check", "until Ctrl-C; meanwhile kill brokers in another terminal"),
        (
            "parley check --seconds 60 --producers 4 --replication-factor 3 --config min.insync.replicas=2",
            "for a minute",
        ),
        ("parley check --transactions --seconds 60", "exactly-once: transactional producers that restart"),
    ],
)


@contextmanager
def _until_interrupted() -> Iterator[Event]:
    over = Event()
    before = signal.signal(signal.SIGINT, lambda *_: over.set())
    try:
        yield over
    finally:
        signal.signal(signal.SIGINT, before)


def _watch(trial: Trial, over: Event, seconds: float) -> None:
    """Show the progress once a second, until the time is up or the operator presses Ctrl-C."""
    from parley.tools.checker.verdict import longest_pause_s

    began = time.monotonic()
    while not over.wait(1.0):
        passed = time.monotonic() - began
        pause = longest_pause_s(trial.history)
        print(f"{passed:5.0f} s  {trial.acknowledged} acknowledged, longest pause {pause:.3f} s", file=sys.stderr)
        if seconds and passed >= seconds:
            return


@app.only_command()
def check(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    topic: Annotated[str, typer.Option("--topic", help="The topic to create and use; it is deleted at the end.")] = "",
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Partitions of the topic.")] = 6,
    replication_factor: Annotated[
        int,
        typer.Option("--replication-factor", help="Replicas of each partition; the cluster's default unless given."),
    ] = -1,
    config: Annotated[list[str], typer.Option("--config", help="A topic setting key=value; repeatable.")] = [],  # noqa: B006 - typer only reads the default
    producers: Annotated[int, typer.Option("--producers", min=1, help="Number of producers.")] = 2,
    readers: Annotated[int, typer.Option("--readers", min=0, help="Number of consumers.")] = 1,
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Records per second of each producer.")] = 500,
    record_size: Annotated[int, typer.Option("--record-size", min=0, help="Size of a record's value in bytes.")] = 100,
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="Duration; 0 means until Ctrl-C.")] = 0,
    idempotence: Annotated[
        bool,
        typer.Option(
            "--idempotence/--no-idempotence",
            help="With --no-idempotence, duplicates and reordered records are allowed.",
        ),
    ] = True,
    transactions: Annotated[
        bool,
        typer.Option(
            "--transactions",
            help="Produce in transactions; some are aborted, and producers are replaced while one is open.",
        ),
    ] = False,
    keep_topic: Annotated[bool, typer.Option("--keep-topic", help="Do not delete the topic at the end.")] = False,
    command_config: CommandConfig = None,
    output_format: OutputFormat = None,
) -> None:
    from confluent_kafka import KafkaException

    if transactions and not idempotence:
        raise CommandError("--transactions needs idempotence. Leave --no-idempotence out.")
    from parley.tools.checker import Trial
    from parley.tools.checker.trial import Unreadable
    from parley.tools.cli.cluster_client import why_refused
    from parley.tools.cli.invocation import pairs
    from parley.tools.cli.librdkafka import secured, security_properties

    properties = client_properties(command_config)
    client = secured(properties)
    if refusal := asyncio.run(why_refused(bootstrap_server, security_properties(properties))):
        raise CommandError(refusal)  # librdkafka would try again for a minute, and then say that no broker responds
    trial = Trial(
        bootstrap_server,
        topic or f"parley-check-{uuid4().hex[:12]}",
        partitions=partitions,
        producers=producers,
        readers=readers,
        idempotent=idempotence,
        transactional=transactions,
        rate=rate,
        record_bytes=record_size,
        client=client,
    )
    try:
        trial.create_topic(replication_factor, pairs(config, "--config"))
    except KafkaException as error:
        raise CommandError(f"The topic {trial.topic} cannot be created: {error.args[0].str()}") from error
    except TimeoutError as error:
        raise CommandError(
            f"no broker responds at {bootstrap_server}. Is a broker running? `parley start` starts one."
        ) from error
    print(f"Producing to {trial.topic}. Press Ctrl-C to stop.", file=sys.stderr)
    with _until_interrupted() as over, trial:
        _watch(trial, over, seconds)
    print("Reading all records again.", file=sys.stderr)
    try:
        verdict = trial.verdict()
    except Unreadable as error:
        raise CommandError(f"A partition cannot be read to its end: {error}") from error
    _show(verdict, trial, output_format)
    if not keep_topic:
        _try_to_delete_topic(trial)
    if not verdict.ok or trial.errors:
        raise typer.Exit(FAILED)
    if _has_no_transaction(verdict):
        raise typer.Exit(INCOMPLETE)


def _has_no_transaction(verdict: Verdict) -> bool:
    """Return True if the producers were transactional, but none has committed a transaction. The rules for transactions
    were then not tested."""
    return verdict.counts.get("committed") == 0


def _try_to_delete_topic(trial: Trial) -> None:
    """Delete the topic. A failure is only a warning, because it does not change the verdict on the cluster."""
    from confluent_kafka import KafkaException

    try:
        trial.delete_topic()
    except (KafkaException, TimeoutError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else "the cluster does not respond"
        print(
            f"The topic {trial.topic} could not be deleted: {reason}. Delete it once the cluster can: "
            f"parley topics --delete --topic {trial.topic}",
            file=sys.stderr,
        )


def _show(verdict: Verdict, trial: Trial, output_format: Format | None) -> None:
    if output_format:
        data = {
            "ok": verdict.ok,
            **verdict.counts,
            "longestPauseMs": round(verdict.longest_pause_s * 1000),
            "violations": [{"kind": each.kind.value, "text": each.text} for each in verdict.violations],
            "clientErrors": trial.errors,
        }
        print_data(data, output_format)
        return
    print(verdict)
    for error in trial.errors:
        print(f"A client stopped early: {error}")
    if not verdict.ok:
        print("The cluster FAILED.")
    elif _has_no_transaction(verdict):
        last = f" The last failure: {trial.history.failures[-1]}." if trial.history.failures else ""
        print(f"Nothing is known about transactions, since none was committed.{last}")
    elif "committed" in verdict.counts:
        print("Every committed transaction is present once and in order, and no record of an aborted one is.")
    else:
        print("No acknowledged record is missing, and none is reordered, duplicated or invented.")
