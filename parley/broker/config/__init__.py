"""The configuration: Kafka's keys and a few of Parley's own, each defined once.

``BrokerConfig.from_properties(read_configuration(path))`` reads a broker's configuration. ``topic_config`` contains the
settings of topics, ``describe`` the responses to DescribeConfigs, and ``dynamic_changes`` the validation of changes at
run time.
"""

from __future__ import annotations

from parley.broker.config.broker_config import BrokerConfig
from parley.broker.config.errors import ConfigError, Problem
from parley.broker.config.key_definition import ConfigType, Password
from parley.broker.config.listeners import ListenerAddress
from parley.broker.config.topic_config import TopicConfig, log_config
from parley.configuration.properties import parse_properties
from parley.configuration.providers import read_configuration

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
    "read_configuration",
]
