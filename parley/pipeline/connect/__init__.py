"""Kafka Connect's model: connectors, converters, transforms, and the workers that run them.

A connector uses ``parley.pipeline.connect.connector``, ``parley.pipeline.connect.data``,
``parley.pipeline.connect.records`` and ``parley.pipeline.connect.config``.
"""

from __future__ import annotations

from parley.pipeline.connect.config import ConfigDef, ConfigKey, ConfigType, Importance
from parley.pipeline.connect.connector import (
    Connector,
    ExactlyOnceSinkTask,
    OffsetRange,
    SinkConnector,
    SinkTask,
    SourceConnector,
    SourceTask,
    Task,
    TransactionContext,
)
from parley.pipeline.connect.data import Field, Schema, SchemaType, Struct
from parley.pipeline.connect.errors import ConfigError, ConnectError, DataError, RetriableError
from parley.pipeline.connect.records import Header, SinkRecord, SourceRecord, TopicPartition

__all__ = [
    "ConfigDef",
    "ConfigError",
    "ConfigKey",
    "ConfigType",
    "ConnectError",
    "Connector",
    "DataError",
    "ExactlyOnceSinkTask",
    "Field",
    "Header",
    "Importance",
    "OffsetRange",
    "RetriableError",
    "Schema",
    "SchemaType",
    "SinkConnector",
    "SinkRecord",
    "SinkTask",
    "SourceConnector",
    "SourceRecord",
    "SourceTask",
    "Struct",
    "Task",
    "TopicPartition",
    "TransactionContext",
]
