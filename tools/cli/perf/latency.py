"""``parley perf latency``: from sending a record to receiving it, one record at a time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random
from typing import Annotated, Any
from uuid import uuid4

import typer

from tools.cli.options import AsJson, client_properties
from tools.cli.perf.statistics import percentile
from tools.cli.running import CommandError

_RECEIVE_S = 60.0
_REPORT_EVERY = 1000


def end_of(consumer: Any, topic: str) -> list[Any]:
    """The partitions of the topic, each at its end. Raises :class:`CommandError` where there is no such topic."""
    from confluent_kafka import TopicPartition

    found = consumer.list_topics(topic, timeout=_RECEIVE_S).topics[topic]
    if found.error is not None or not found.partitions:
        raise CommandError(f"There is no topic '{topic}'. Make it with `parley topics --create --topic {topic}`.")
    ends = []
    for index in sorted(found.partitions):
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=_RECEIVE_S)
        ends.append(TopicPartition(topic, index, end))
    return ends


def round_trip(producer: Any, consumer: Any, topic: str, value: bytes) -> float:
    """Send a record, wait until it is acknowledged and received; the time it took in ms."""
    failures: list[str] = []
    started = time.perf_counter()
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error.str()) if error else None)
    producer.flush()
    if failures:
        raise CommandError(f"The record was not acknowledged: {failures[0]}.")
    message = consumer.poll(_RECEIVE_S)
    elapsed_ms = (time.perf_counter() - started) * 1000
    if message is None:
        raise CommandError(f"No record came back within {_RECEIVE_S:g} s.")
    if message.error() is not None:
        raise CommandError(f"{message.error().str()}.")
    if message.value() != value:
        raise CommandError("Another record came back than was sent: somebody else writes to the topic.")
    return elapsed_ms


def latency(
    bootstrap: Annotated[str, typer.Argument(help="Brokers to connect to first: host:port, several by commas.")],
    topic: Annotated[str, typer.Argument(help="The topic; nobody else should write to it.")],
    num_records: Annotated[int, typer.Argument(help="How many records to send.")],
    producer_acks: Annotated[str, typer.Argument(help="1 or all: who must have a record before the next is sent.")],
    record_size: Annotated[int, typer.Argument(help="Bytes of a record.")],
    properties: Annotated[Path | None, typer.Argument(help="Properties file for the clients.")] = None,
    json_output: AsJson = False,
) -> None:
    """Print how long records take from producer to consumer, as kafka-e2e-latency does."""
    from confluent_kafka import Consumer, KafkaException, Producer

    if producer_acks not in ("1", "all"):
        raise CommandError(f"The acknowledgement must be 1 or all, not {producer_acks}.")
    if num_records < 1 or record_size < 1:
        raise CommandError("The number of records and their size must be 1 or more.")
    own = client_properties(properties)
    random = Random(0)
    try:
        consumer = Consumer(
            {
                **own,
                "bootstrap.servers": bootstrap,
                "group.id": f"test-group-{uuid4()}",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 500,
                "auto.offset.reset": "latest",
            }
        )
        producer = Producer({**own, "bootstrap.servers": bootstrap, "linger.ms": 0, "acks": producer_acks})
        consumer.assign(end_of(consumer, topic))
        consumer.poll(0)
        latencies = []
        for number in range(num_records):
            value = bytes(random.choices(range(65, 91), k=record_size))
            latencies.append(round_trip(producer, consumer, topic, value))
            if number % _REPORT_EVERY == 0 and not json_output:
                print(f"{number}\t{latencies[-1]}", flush=True)
        consumer.close()
    except KafkaException as error:
        raise CommandError(f"{error.args[0].str()}.") from error
    _report(latencies, as_json=json_output)


def _report(latencies: list[float], *, as_json: bool) -> None:
    ordered = sorted(int(one) for one in latencies)
    average = sum(latencies) / len(latencies)
    half, p99, p999 = (percentile(ordered, share) for share in (0.5, 0.99, 0.999))
    if as_json:
        print(json.dumps({"avgMs": average, "p50Ms": half, "p99Ms": p99, "p999Ms": p999, "records": len(latencies)}))
        return
    print(f"Avg latency: {average:.4f} ms")
    print(f"Percentiles: 50th = {half}, 99th = {p99}, 99.9th = {p999}")
