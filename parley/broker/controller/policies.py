"""Policies of the operator: code of his own that may refuse a topic or a change of configuration (KIP-108, KIP-133).

A policy is a Python class named in the configuration as ``package.module.Class``. It is made once, without arguments;
``configure(configs)`` is called when it has that method, then ``validate(request)`` for every request, which raises
:class:`PolicyViolation` to refuse it. The violation's text is what the client reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from parley.broker.metadata.types import ConfigResource, TopicImage
from parley.protocol.errors import ErrorCode, KafkaError


class PolicyViolation(Exception):
    """Raised by a policy to refuse a request; its text is sent to the client."""


@dataclass(frozen=True, slots=True)
class NewTopicRequest:
    """What a ``create.topic.policy.class.name`` policy judges."""

    topic: str
    partitions: int
    replication_factor: int
    replica_assignments: Mapping[int, Sequence[int]]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfigChangeRequest:
    """What an ``alter.config.policy.class.name`` policy judges: the entries as they would be afterwards."""

    resource: ConfigResource
    configs: Mapping[str, str]


class Policy:
    """One loaded policy, or none at all: then everything is allowed."""

    def __init__(self, class_name: str, configs: Mapping[str, Any]) -> None:
        """Load the class; ImportError, AttributeError or what its constructor raises stop the start of the broker."""
        self._judge = _load(class_name, configs) if class_name else None
        self._name = class_name

    def check_topic(self, topic: TopicImage, configs: Mapping[str, str]) -> None:
        """Raise ``POLICY_VIOLATION`` unless the topic may be created so."""
        self._check(
            NewTopicRequest(
                topic=topic.name,
                partitions=len(topic.partitions),
                replication_factor=len(topic.partitions[0].replicas),
                replica_assignments={i: state.replicas for i, state in enumerate(topic.partitions)},
                configs=configs,
            )
        )

    def check_configs(self, resource: ConfigResource, configs: Mapping[str, str]) -> None:
        """Raise ``POLICY_VIOLATION`` unless the resource may have these entries."""
        self._check(ConfigChangeRequest(resource, configs))

    def _check(self, request: NewTopicRequest | ConfigChangeRequest) -> None:
        if self._judge is None:
            return
        try:
            self._judge.validate(request)
        except PolicyViolation as violation:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, str(violation) or f"Refused by {self._name}.") from violation


def _load(class_name: str, configs: Mapping[str, Any]) -> Any:
    module, _, name = class_name.rpartition(".")
    if not module:
        raise ImportError(f"'{class_name}' names no module: a policy is given as package.module.Class")
    judge = getattr(import_module(module), name)()
    if hasattr(judge, "configure"):
        judge.configure(configs)
    return judge
