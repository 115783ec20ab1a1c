"""``parley log-dirs --verify``: make the brokers read their logs again, and show the damaged records they find."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from parley.tools.cli.byte_sizes import bytes_text
from parley.tools.cli.cluster_client import check
from parley.tools.plurals import plural

if TYPE_CHECKING:
    from parley.protocol.client import Client

POLL_S: Final = 0.5


async def verified(client: Client, brokers: Sequence[int], topics: Sequence[str]) -> dict[int, Any]:
    """Wait, without a time limit, until these brokers have read every byte of these topics (all if empty), and return
    their last responses by broker. Raises ``CommandError`` if a broker rejects the request, and KafkaError if one does
    not respond."""
    return dict(zip(brokers, await asyncio.gather(*(_verified(client, each, topics) for each in brokers)), strict=True))


async def _verified(client: Client, broker: int, topics: Sequence[str]) -> Any:
    from parley.protocol.messages.log_verification import VerifyLogsRequest

    since_ms = -1
    while True:
        response = await client.send(VerifyLogsRequest(topics=list(topics) or None, since_ms=since_ms), node=broker)
        check(response.error_code, response.error_message, doing=f"Broker {broker}")
        since_ms = response.since_ms
        if not any(each.unverified_bytes for topic in response.topics for each in topic.partitions):
            return response
        await asyncio.sleep(POLL_S)


def as_data(found: Mapping[int, Any]) -> dict[str, Any]:
    """Return the logs of each broker, and the damaged records in them, as JSON data."""
    return {
        "brokers": [
            {
                "broker": broker,
                "partitions": [
                    {
                        "partition": f"{topic.name}-{each.partition_index}",
                        "logDir": each.log_dir,
                        "size": each.size_bytes,
                        "damage": [
                            {
                                "firstOffset": damage.first_offset,
                                "lastOffset": damage.last_offset,
                                "reason": damage.reason,
                                "hasNoCopy": damage.has_no_copy,
                            }
                            for damage in each.damage
                        ],
                    }
                    for topic in response.topics
                    for each in topic.partitions
                ],
            }
            for broker, response in sorted(found.items())
        ]
    }


def is_damaged(data: Mapping[str, Any]) -> bool:
    """Return True if a log contains damaged records."""
    return any(each["damage"] for broker in data["brokers"] for each in broker["partitions"])


def as_lines(data: Mapping[str, Any]) -> list[str]:
    """Return the lines to display: one for each damaged range, and one for each broker."""
    lines = []
    for broker in data["brokers"]:
        partitions = broker["partitions"]
        ranges = sum(len(each["damage"]) for each in partitions)
        size = bytes_text(sum(each["size"] for each in partitions))
        result = plural(ranges, "damaged range") if ranges else "no damage"
        verified = plural(len(partitions), "partition")
        lines.append(f"Broker {broker['broker']}: {verified}, {size} verified, {result}.")
        lines += [
            f"  {each['partition']} offsets {damage['firstOffset']} to {damage['lastOffset']}: {damage['reason']}; "
            + ("no other live replica has them" if damage["hasNoCopy"] else "they are fetched from another replica")
            for each in partitions
            for damage in each["damage"]
        ]
    return lines
