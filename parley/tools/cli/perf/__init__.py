"""``parley perf``: measure producing, consuming and latency, as kafka-producer-perf-test and similar tools do."""

from __future__ import annotations

from parley.tools.cli.app import App, example_text, from_options
from parley.tools.cli.perf import consume, latency, produce

_PRODUCE = [
    ("parley perf produce --topic t --num-records 1000000 --record-size 100 --throughput -1", "at full speed"),
    (
        "parley perf produce --topic t --num-records 60000 --payload-file lines.txt --throughput 1000",
        "lines of a file, 1000 per second",
    ),
    (
        "parley perf produce --topic t --num-records 1000000 --record-size 1024 --throughput -1 "
        "--producer-props acks=1 linger.ms=5 compression.type=lz4",
        "with producer settings",
    ),
]
_CONSUME = [
    ("parley perf consume --topic t --num-records 1000000", "one line of results"),
    (
        "parley perf consume --topic t --num-records 1000000 --show-detailed-stats --reporting-interval 1000",
        "one line per second",
    ),
]
_LATENCY = [
    ("parley perf latency 127.0.0.1:9092 t 1000 all 100", "1000 records of 100 bytes with acks=all"),
    (
        "parley perf latency --bootstrap-server 127.0.0.1:9092 --topic t --num-records 1000 --producer-acks 1 "
        "--record-size 100 --json",
        "the same with acks=1, as JSON",
    ),
]

app = App(
    "Measure a cluster with librdkafka: producer throughput, consumer throughput, and end-to-end latency.\n\n"
    "`parley perf COMMAND --help` describes a subcommand.",
    examples=[_PRODUCE[0], _CONSUME[0], _LATENCY[0]],
    optional_values={"--timeout": "10000"},
    many_values=["--producer-props", "--command-property"],
)
app.command(name="produce", epilog=example_text(_PRODUCE))(from_options(produce.Options, produce.produce))
app.command(name="consume", epilog=example_text(_CONSUME))(from_options(consume.Options, consume.consume))
app.command(name="latency", epilog=example_text(_LATENCY))(from_options(latency.Options, latency.latency))
