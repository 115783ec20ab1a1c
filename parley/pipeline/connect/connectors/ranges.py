"""The keys of sinks that write ranges of offsets, each as a whole: files, commits of a table."""

from __future__ import annotations

from parley.pipeline.connect.config import ConfigDef, ConfigType, Importance, at_least, non_empty

__all__ = ["range_keys"]


def range_keys(target: str, doc: str) -> ConfigDef:
    """The key ``target``, which is needed and means this, ``flush.size`` and ``rotate.interval.ms``."""
    return (
        ConfigDef()
        .define(target, ConfigType.STRING, importance=Importance.HIGH, doc=doc, validator=non_empty)
        .define(
            "flush.size",
            ConfigType.INT,
            10_000,
            Importance.HIGH,
            "After how many records of a partition they are written.",
            validator=at_least(1),
        )
        .define(
            "rotate.interval.ms",
            ConfigType.INT,
            10_000,
            Importance.HIGH,
            "After how many ms fewer records are written.",
            validator=at_least(0),
        )
    )
