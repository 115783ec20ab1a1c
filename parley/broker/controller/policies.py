"""Policies: the operator's code, which may reject a new topic or a configuration change (KIP-108, KIP-133).

A policy is a Python class that the configuration names as ``package.module.Class``. The broker creates it once, without
arguments, and calls ``configure(configs)`` if the class has that method. It calls ``validate(request)`` for every
request. To reject the request, the policy raises ``PolicyViolation`` with a message for the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from parley.broker.metadata.types import ConfigResource, TopicImage
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError


class PolicyViolation(Exception):
    """Raised by a policy to reject a request. Its text is sent to the client."""


@dataclass(frozen=True, slots=True)
class NewTopicRequest:
    """The request that a ``create.topic.policy.class.name`` policy validates."""

    topic: str
    partitions: int
    replication_factor: int
    replica_assignments: Mapping[int, Sequence[int]]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfigChangeRequest:
    """The change that an ``alter.config.policy.class.name`` policy validates: all entries as they would be after the
    change."""

    resource: ConfigResource
    configs: Mapping[str, str]


class Policy:
    """A loaded policy. Without a class name it allows everything.

    The methods raise KafkaError (POLICY_VIOLATION) when the policy raises ``PolicyViolation``. They do not catch any
    other error of the policy.
    """

    def __init__(self, class_name: str, configs: Mapping[str, Any]) -> None:
        """Load the class, and pass it ``configs``. Raises ImportError or AttributeError if the class does not exist,
        and the errors that the class raises."""
        self._policy = _load(class_name, configs) if class_name else None
        self._name = class_name

    def check_topic(self, topic: TopicImage, configs: Mapping[str, str]) -> None:
        """Raise POLICY_VIOLATION if the policy rejects the topic."""
        self._check(
            lambda: NewTopicRequest(
                topic=topic.name,
                partitions=len(topic.partitions),
                replication_factor=len(topic.partitions[0].replicas),
                replica_assignments={i: state.replicas for i, state in enumerate(topic.partitions)},
                configs=configs,
            )
        )

    def check_configs(self, resource: ConfigResource, configs: Mapping[str, str]) -> None:
        """Raise POLICY_VIOLATION if the policy rejects these entries for the resource."""
        self._check(lambda: ConfigChangeRequest(resource, configs))

    def _check(self, request: Callable[[], NewTopicRequest | ConfigChangeRequest]) -> None:
        if self._policy is None:
            return
        try:
            self._policy.validate(request())
        except PolicyViolation as violation:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, str(violation) or f"Refused by {self._name}.") from violation


def _load(class_name: str, configs: Mapping[str, Any]) -> Any:
    module, _, name = class_name.rpartition(".")
    if not module:
        raise ImportError(f"'{class_name}' contains no module: specify the policy as package.module.Class")
    policy = getattr(import_module(module), name)()
    if hasattr(policy, "configure"):
        policy.configure(configs)
    return policy
