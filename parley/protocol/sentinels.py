"""The numbers that mean "none" or "unknown" in Kafka's protocol and files."""

from __future__ import annotations

from typing import Final

NO_EPOCH: Final = -1
"""Means "no epoch" for a leader, a producer, a broker or a controller. A request with this value skips the
epoch check."""
NO_OFFSET: Final = -1
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
