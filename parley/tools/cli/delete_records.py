"""``parley delete-records``: delete records before an offset, as kafka-delete-records does."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.app import App
from parley.tools.cli.cluster_client import TIMEOUT_MS, by_topic, described, on_cluster
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, BootstrapServer, CommandConfig, OutputFormat
from parley.tools.cli.invocation import FAILED, CommandError
from parley.tools.cli.output import print_data

if TYPE_CHECKING:
    from parley.protocol.client import Client

app = App(
    "Delete the records before an offset in each partition listed in a JSON file.\n\n"
    'The file has the form {"partitions": [{"topic": "foo", "partition": 1, "offset": 1}], "version": 1}. '
    "Offset -1 deletes all records.",
    examples=[
        ("parley delete-records --offset-json-file offsets.json", "delete, and show the new first offsets"),
        ("parley delete-records --offset-json-file - < offsets.json", "the same, from standard input"),
    ],
)


def parse_plan(text: str) -> dict[TopicPartition, int]:
    """Parse the JSON of kafka-delete-records into an offset per partition. Raises ``CommandError`` if the text has any
    other format."""
    try:
        plan = json.loads(text)
    except ValueError as error:
        raise CommandError(f"The input is not valid JSON: {error}.") from error
    if not isinstance(plan, dict) or not isinstance(plan.get("partitions"), list):
        raise CommandError(
            'The JSON must contain a list "partitions". `parley delete-records --help` shows the format.'
        )
    if plan.get("version", 1) != 1:
        raise CommandError(f"The JSON has version {plan['version']}; only version 1 is supported.")
    offsets: dict[TopicPartition, int] = {}
    for entry in plan["partitions"]:
        where = _partition(entry)
        if where in offsets:
            raise CommandError(f"The JSON names {where[0]}-{where[1]} twice.")
        offsets[where] = entry["offset"]
    return offsets


def _partition(entry: Any) -> TopicPartition:
    kinds = {"topic": str, "partition": int, "offset": int}
    if not isinstance(entry, dict) or any(not isinstance(entry.get(key), kind) for key, kind in kinds.items()):
        raise CommandError(
            f"Each entry needs a topic, a partition and an offset; this one does not: {json.dumps(entry)}."
        )
    return entry["topic"], entry["partition"]


async def delete(client: Client, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
    """Delete the records before the offsets. Returns the low watermark and the error code (0 on success) of each
    partition. The low watermark is -1 if there is an error. Raises KafkaError if a leader does not respond."""
    from parley.protocol.errors import KafkaError
    from parley.protocol.messages.topics import DeleteRecordsRequest as Request

    results: dict[TopicPartition, tuple[int, int]] = {}
    by_node: dict[int, list[TopicPartition]] = {}
    for where in offsets:
        try:
            by_node.setdefault(await client.leader(*where), []).append(where)
        except KafkaError as error:
            results[where] = -1, error.code
    for node, partitions in by_node.items():
        topics = [
            Request.DeleteRecordsTopic(
                name=topic,
                partitions=[
                    Request.DeleteRecordsPartition(partition_index=index, offset=offsets[topic, index])
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(partitions).items()
        ]
        answer = await client.send(Request(topics=topics, timeout_ms=TIMEOUT_MS), node=node)
        for topic in answer.topics:
            for one in topic.partitions:
                results[topic.name, one.partition_index] = one.low_watermark, one.error_code
    return results


@app.only_command()
def delete_records(
    offset_json_file: Annotated[
        Path, typer.Option("--offset-json-file", allow_dash=True, help="The JSON file; - for standard input.")
    ],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    output_format: OutputFormat = None,
) -> None:
    try:
        text = sys.stdin.read() if str(offset_json_file) == "-" else offset_json_file.read_text()
    except OSError as error:
        raise CommandError(f"The file {offset_json_file} cannot be read: {error.strerror}.") from error
    offsets = parse_plan(text)
    results = on_cluster(bootstrap_server, command_config, lambda client: delete(client, offsets))
    if output_format:
        rows = [
            {"topic": topic, "partition": index, "lowWatermark": low, "error": described(code) if code else None}
            for (topic, index), (low, code) in sorted(results.items())
        ]
        print_data(rows, output_format)
    else:
        print("Executing records delete operation")
        print("Records delete operation completed:")
        for (topic, index), (low, code) in sorted(results.items()):
            print(f"partition: {topic}-{index}\t" + (f"error: {described(code)}" if code else f"low_watermark: {low}"))
    if any(code for _, code in results.values()):
        raise typer.Exit(FAILED)
