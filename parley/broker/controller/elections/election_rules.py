"""The part of a topic's configuration that decides which replicas may lead its partitions."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from parley.broker.metadata.image import MetadataImage
from parley.light_dataclasses import dataclass


class RecoveryStrategy(StrEnum):
    """When the controller elects a leader for a partition that has lost all of its eligible replicas (KIP-966)."""

    BALANCED = "Balanced"
    """Recover when all replicas that were last eligible have reported. If none of them is intact, wait for the reports
    of all replicas."""
    AGGRESSIVE = "Aggressive"
    """Recover from the replicas that have reported, without waiting for the other replicas."""
    NONE = "None"
    """Recover only when an operator requests an unclean election."""


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """The settings of one topic that decide its elections, such as ``min.insync.replicas``."""

    min_insync_replicas: int = 1
    recovery: RecoveryStrategy = RecoveryStrategy.BALANCED
    is_every_append_synced: bool = False
    """True if no record is acknowledged before it is synced (``flush.messages=1``)."""


RulesOf = Callable[[MetadataImage, str], ElectionRules]
"""Returns a topic's rules, which follow from the configuration in an image."""
