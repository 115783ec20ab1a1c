"""The numbers by which Kafka's protocol and files say "none" or "not known"."""

from __future__ import annotations

from typing import Final

NO_EPOCH: Final = -1
"""The epoch of a leader, a producer, a broker or a controller. A request that carries it asks for no check of it."""
NO_OFFSET: Final = -1
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
