"""The type that identifies a partition."""

from __future__ import annotations

TopicPartition = tuple[str, int]
"""A topic's name, and the index of one of its partitions."""
