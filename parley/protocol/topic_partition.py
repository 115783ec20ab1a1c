"""How a partition is named."""

from __future__ import annotations

TopicPartition = tuple[str, int]
"""A topic's name, and the index of one of its partitions."""
