"""The configuration: Kafka's keys and the few of Parley's own, each defined once.

``BrokerConfig.from_properties(read_properties(path))`` is how a broker gets its own; :mod:`broker.config.topic_config`
has what a topic may set, :mod:`broker.config.describe` what DescribeConfigs answers, :mod:`broker.config.dynamic` what
may be changed while brokers run.
"""

from __future__ import annotations

from broker.config.broker_config import BrokerConfig
from broker.config.definition import ConfigType, Password
from broker.config.errors import ConfigError, Problem
from broker.config.listeners import ListenerAddress
from broker.config.properties import parse_properties, read_properties
from broker.config.topic_config import TopicConfig, log_config

__all__ = [
    "BrokerConfig",
    "ConfigError",
    "ConfigType",
    "ListenerAddress",
    "Password",
    "Problem",
    "TopicConfig",
    "log_config",
    "parse_properties",
    "read_properties",
]
