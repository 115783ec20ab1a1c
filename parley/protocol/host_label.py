"""The host labels of brokers (``broker.host.label``) in DescribeCluster responses.

Kafka has no such label, and the messages keep Kafka's fields. Therefore the label is a tagged field that Kafka does not
define (KIP-482): all clients skip tagged fields that they do not know. The number is far above those that Kafka uses.
"""

from __future__ import annotations

from typing import Final

from parley.protocol.messages.metadata import DescribeClusterResponse

_TAG: Final = 10_000


def tagged_label(label: str) -> tuple[tuple[int, bytes], ...]:
    """Return the ``unknown_tags`` of a broker with this label: one tagged field, or none if the label is empty."""
    return ((_TAG, label.encode()),) if label else ()


def host_label_of(broker: DescribeClusterResponse.DescribeClusterBroker) -> str | None:
    """Return the broker's label, or None if it has none. Apache Kafka's brokers have none."""
    return next((value.decode(errors="replace") for tag, value in broker.unknown_tags if tag == _TAG), None)
