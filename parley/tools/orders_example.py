"""``python -m parley.tools.orders_example``: the worked example of docs/example-orders.md, from events to a table.

Change events of orders go to a topic. A Spark job writes the revenue of each window and country to another topic. It is
killed halfway and restarted from its checkpoint. That topic is loaded into a Delta table, which DuckDB reads. Finally,
every row must equal what plain Python computes from the events; otherwise the exit code is 1. ``--plot`` draws the
revenue that DuckDB reads.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

ORDERS, REVENUE = "orders", "revenue"
WINDOW_MINUTES: Final = 10
_COUNTRIES: Final = ("DE", "FR", "IT", "PL")
_PARTITIONS: Final = 3
_START: Final = datetime(2026, 11, 1, 8, tzinfo=UTC)
_LATE_S_MAX: Final = 240
"""The maximum delay of an event. It is less than the job's watermark, so that no event is dropped."""
SCHEMA: Final = "window timestamp, country string, revenue decimal(14, 2), bookings bigint"

Row = tuple[datetime, str, Decimal, int]


def events(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Return ``count`` change events of orders, like those in a database's log, in order of arrival. Some arrive late.
    The same ``seed`` always gives the same events."""
    random_ = random.Random(seed)
    orders: dict[int, dict[str, Any]] = {}
    found = []
    for number in range(count):
        at = _START + timedelta(seconds=10 * number)
        before = random_.choice(list(orders.values())) if orders and random_.random() < 0.4 else None
        if before is None:
            country, cents = random_.choice(_COUNTRIES), random_.randrange(100, 100_000)
            after: dict[str, Any] | None = {"id": number, "country": country, "amount": f"{Decimal(cents) / 100:.2f}"}
        elif random_.random() < 0.3:
            after = None
        else:
            after = {**before, "amount": f"{Decimal(random_.randrange(100, 100_000)) / 100:.2f}"}
        if after is None and before is not None:
            del orders[before["id"]]
        elif after is not None:
            orders[after["id"]] = after
        op = "c" if before is None else "d" if after is None else "u"
        change = {"op": op, "at": at.isoformat(), "before": before, "after": after}
        found.append((number + random_.uniform(0, _LATE_S_MAX / 10), change))
    return [change for _, change in sorted(found, key=lambda one: one[0])]


def expected(changes: Sequence[dict[str, Any]]) -> list[Row]:
    """Return the rows that the job must write, sorted: window, country, revenue and number of bookings, computed by
    plain Python."""
    sums: defaultdict[tuple[datetime, str], tuple[Decimal, int]] = defaultdict(lambda: (Decimal(0), 0))
    for change in changes:
        at = datetime.fromisoformat(change["at"])
        window = at - timedelta(minutes=at.minute % WINDOW_MINUTES, seconds=at.second)
        for order, sign in ((change["before"], -1), (change["after"], 1)):
            if order is not None:
                total, bookings = sums[window, order["country"]]
                sums[window, order["country"]] = total + sign * Decimal(order["amount"]), bookings + 1
    return sorted((window, country, total, count) for (window, country), (total, count) in sums.items())


def produce(bootstrap: str, changes: Sequence[dict[str, Any]]) -> None:
    """Send the changes. All changes to an order go to the same partition. Raises RuntimeError if some are not
    acknowledged within a minute."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for change in changes:
        key = str((change["after"] or change["before"])["id"])
        producer.produce(ORDERS, json.dumps(change).encode(), key.encode())
        producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("some changes were not written")


def close_windows(bootstrap: str, changes: Sequence[dict[str, Any]]) -> None:
    """Send to each partition an event that is so much later than all others that the watermark closes their windows."""
    from confluent_kafka import Producer

    last = max(datetime.fromisoformat(change["at"]) for change in changes) + timedelta(days=1)
    end = json.dumps({"op": "end", "at": last.isoformat(), "before": None, "after": None}).encode()
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in range(_PARTITIONS):
        producer.produce(ORDERS, end, partition=partition)
    producer.flush(60)


@contextmanager
def job(bootstrap: str, folder: Path, master: str, at_once: int, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the Spark job in a separate process, which is killed at the end of the context, and yield the process.
    ``at_once`` is the maximum number of changes per batch. ``words`` are further options of the job."""
    command = [sys.executable, "-m", "parley.pipeline.demo.orders", "--bootstrap-server", bootstrap]
    command += ["--source", ORDERS, "--target", REVENUE, "--window", f"{WINDOW_MINUTES} minutes"]
    command += ["--checkpoint-dir", str(folder / "checkpoint"), "--master", master, "--at-once", str(at_once), *words]
    with (folder / "spark.log").open("ab") as log:
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        assert started.stdout is not None
        started.stdout.close()


def follow(started: subprocess.Popen[str], folder: Path, until: int) -> int:
    """Print the job's progress until it has read ``until`` changes. Returns how many it has read. Raises RuntimeError
    if the job ends before that."""
    assert started.stdout is not None
    for line in started.stdout:
        report = json.loads(line)
        print(f"  batch {report['batch']:>3}: {report['done']} changes are read", flush=True)
        if report["done"] >= until:
            return int(report["done"])
    log = (folder / "spark.log").read_text(errors="replace")
    raise RuntimeError(f"the Spark job ended with code {started.wait()}: {log[-4000:]}")


def revenue(bootstrap: str, folder: Path, changes: Sequence[dict[str, Any]], master: str, *words: str) -> None:
    """Write the changes and run the job over them. The job is killed after a third of the changes, and a second run
    finishes. ``words`` are further options of the job. Raises RuntimeError if the job ends too early or rows are
    missing."""
    batch = max(10, len(changes) // 12)
    produce(bootstrap, changes)
    with job(bootstrap, folder, master, batch, *words) as first:
        read = follow(first, folder, len(changes) // 3)
        print(f"$ kill -9 {first.pid}  # the driver, after {read} changes", flush=True)
    with job(bootstrap, folder, master, batch, *words) as second:
        follow(second, folder, len(changes))
        close_windows(bootstrap, changes)  # only now: any event after it would be too late for the watermark
        _await_rows(bootstrap, len(expected(changes)))


def _await_rows(bootstrap: str, count: int) -> None:
    """Wait until the topic contains this many records. A window is written by the batch after the one that closes it.
    Raises RuntimeError if no record arrives for two minutes."""
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": bootstrap, "group.id": "orders-example", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "topic.metadata.refresh.interval.ms": 500})
    consumer.subscribe([REVENUE])
    seen = 0
    try:
        while seen < count:
            found = consumer.consume(count, 120)
            if not found:
                raise RuntimeError(f"{REVENUE} contains {seen} of {count} records")
            seen += sum(one.error() is None for one in found)
    finally:
        consumer.close()


def load_table(bootstrap: str, table: Path, master: str, *words: str) -> None:
    """Load the topic into a Delta table with ``parley load``. ``words`` are further options of the command. Raises
    CalledProcessError if the command fails."""
    command = [sys.executable, "-m", "parley", "load", "--bootstrap-server", bootstrap, "--topic", REVENUE]
    command += ["--output", str(table), "--format", "delta", "--value-format", "json", "--schema", SCHEMA, "--flat"]
    subprocess.run([*command, "--master", master, *words], check=True)


def read_with_duckdb(table: Path) -> list[Row]:
    """Return the rows of the Delta table as DuckDB reads them."""
    import duckdb
    from deltalake import DeltaTable

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("revenue", DeltaTable(table).to_pyarrow_dataset())
    found = connection.sql('SELECT "window", country, revenue, bookings FROM revenue ORDER BY "window", country')
    return [(at.astimezone(UTC), country, total, count) for at, country, total, count in found.fetchall()]


def main(arguments: list[str]) -> int:
    """Run the example. Returns 0 if all rows agree, otherwise 1."""
    from parley import Broker

    parser = argparse.ArgumentParser(prog="python -m parley.tools.orders_example", allow_abbrev=False)
    parser.add_argument("--master", default="local[2]", help="the Spark master; local by default")
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--plot", type=Path, help="the file for the picture, an SVG")
    options = parser.parse_args(arguments)
    changes = events(options.events)
    with tempfile.TemporaryDirectory(prefix="parley-orders-") as name:
        folder = Path(name)
        with Broker({"num.partitions": str(_PARTITIONS)}) as broker:
            revenue(broker.bootstrap_servers, folder, changes, options.master)
            load_table(broker.bootstrap_servers, folder / "table", options.master)
        rows = read_with_duckdb(folder / "table")
    wanted = expected(changes)
    agree = rows == wanted
    for row in set(rows) ^ set(wanted):
        print("only in", "the table:" if row in rows else "plain Python:", *row)
    print(f"{len(rows)} rows of {len(changes)} changes: {'all agree' if agree else 'they differ'} with plain Python")
    if options.plot is not None:
        from parley.tools.orders_picture import picture

        options.plot.write_text(picture(rows))
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
