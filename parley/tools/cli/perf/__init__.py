"""``parley perf``: measure producing, consuming and latency, as Kafka's kafka-producer-perf-test and its kin do."""

from __future__ import annotations

from parley.tools.cli.app import App, example_text, from_options
from parley.tools.cli.perf import consume, latency, produce

_PRODUCE = [
    ("parley perf produce --topic t --num-records 1000000 --record-size 100 --throughput -1", "as fast as it goes"),
    ("parley perf produce --topic t --num-records 60000 --payload-file lines.txt --throughput 1000", "lines, paced"),
    (
        "parley perf produce --topic t --num-records 1000000 --record-size 1024 --throughput -1 "
        "--producer-props acks=1 linger.ms=5 compression.type=lz4",
        "with settings of the client",
    ),
]
_CONSUME = [
    ("parley perf consume --topic t --num-records 1000000", "one line at the end"),
    (
        "parley perf consume --topic t --num-records 1000000 --show-detailed-stats --reporting-interval 1000",
        "by second",
    ),
]
_LATENCY = [
    ("parley perf latency 127.0.0.1:9092 t 1000 all 100", "1000 records of 100 bytes, each acknowledged by all"),
    (
        "parley perf latency --bootstrap-server 127.0.0.1:9092 --topic t --num-records 1000 --producer-acks 1 "
        "--record-size 100 --json",
        "for another program",
    ),
]

app = App(
    "Measure a cluster with librdkafka: how fast it takes records, how fast it gives them, and how long one takes.\n\n"
    "`parley perf COMMAND --help` explains one.",
    examples=[_PRODUCE[0], _CONSUME[0], _LATENCY[0]],
    optional_values={"--timeout": "10000"},
    many_values=["--producer-props", "--command-property"],
)
app.command(name="produce", epilog=example_text(_PRODUCE))(from_options(produce.Options, produce.produce))
app.command(name="consume", epilog=example_text(_CONSUME))(from_options(consume.Options, consume.consume))
app.command(name="latency", epilog=example_text(_LATENCY))(from_options(latency.Options, latency.latency))
