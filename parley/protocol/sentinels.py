"""The numbers that mean "none" or "unknown" in Kafka's protocol and files."""

from __future__ import annotations

from typing import Final

NO_EPOCH: Final = -1
"""Means "no epoch" for a leader, a producer, a broker or a controller. The receiver of a request with this value does
not check the epoch."""
NO_OFFSET: Final = -1
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
