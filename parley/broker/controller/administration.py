"""Changes to topics and configuration that administrators request. Request handlers call these methods.

``Administration`` passes to each decision, in addition to the image, what it needs: the cluster's defaults, the
operator's policies, the validation of configuration, new ids and random numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import NoReturn

from parley.broker.config import BrokerConfig, ConfigError, ConfigType
from parley.broker.config.dynamic_changes import THREAD_COUNTS, check_change
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.config.group_config import check_group
from parley.broker.config.sealed_passwords import PasswordSeal
from parley.broker.config.topic_config import TopicConfig, check_topic, warnings_about_topic
from parley.broker.controller.configs import ConfigChange, ConfigOutcome, alter_configs
from parley.broker.controller.controller import Controller
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.leader_reconciliation import reconcile_leaders
from parley.broker.controller.policies import Policy
from parley.broker.controller.topics import (
    Charge,
    NewPartitions,
    NewTopic,
    TopicDefaults,
    TopicOutcome,
    TopicPolicy,
    add_partitions,
    charge_nobody,
    create_topics,
    delete_topics,
)
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ConfigResource, ResourceType, TopicImage
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

_log = logging.getLogger(__name__)

MIN_INSYNC_REPLICAS = "min.insync.replicas"


class Administration:
    """Changes topics and configuration, on the broker that is the controller.

    The methods that make changes raise the errors of ``Controller.submit``, for example NOT_CONTROLLER if this broker
    is not the controller.
    """

    def __init__(
        self,
        broker_id: int,
        controller: Controller,
        metadata: Metadata,
        config: DynamicConfig,
        rng: Random,
        until_usable: Callable[[], Awaitable[None]],
        rules: RulesOf,
    ) -> None:
        """``until_usable()`` waits until this broker has opened the logs of new partitions, and then until the other
        brokers have applied the metadata. It waits at most a second for each, and returns even if that was too short.
        """
        static = config()
        self._broker_id = broker_id
        self._controller = controller
        self._metadata = metadata
        self._config = config
        self._rng = rng
        self._until_usable = until_usable
        self._rules = rules
        self._topic_policy = Policy(static.create_topic_policy_class_name or "", static.given)
        self._seal = PasswordSeal(static)
        self._config_policy = Policy(static.alter_config_policy_class_name or "", static.given)

    @property
    def is_controller(self) -> bool:
        """True if this broker is the controller, as far as it knows."""
        return self._controller.is_active

    # --- Topics ---

    async def create_topics(
        self, wanted: Sequence[NewTopic], *, charge: Charge = charge_nobody, validate_only: bool = False
    ) -> list[TopicOutcome]:
        """Create topics, or only validate them if ``validate_only``. Returns one outcome for each topic.

        Waits for a limited time until the new partitions can be used.
        """

        def decide(image: MetadataImage) -> Decision[list[TopicOutcome]]:
            config = self._config()
            return create_topics(
                image,
                wanted,
                defaults=TopicDefaults(config.num_partitions, config.default_replication_factor),
                new_id=self._new_topic_id,
                rng=self._rng,
                policy=self._new_topic_check(config),
                charge=charge,
                validate_only=validate_only,
            )

        outcomes = await self._controller.submit(decide)
        if not validate_only:
            created = {outcome.name for outcome in outcomes if outcome.error is None}
            for topic in wanted:
                if topic.name in created:
                    _log_warnings_about(topic.name, topic.configs)
        await self._until_usable()
        return outcomes

    def _new_topic_id(self) -> UUID:
        """Return a random topic id that, as text, does not start with a dash.

        It is a UUID of version 4, so it cannot be one of the topic ids that Kafka reserves.
        """
        while True:
            new = UUID(int=self._rng.getrandbits(128), version=4)
            if new.bytes[0] >> 2 != 0b111110:  # base64url of these six bits is "-"
                return new

    def _new_topic_check(self, config: BrokerConfig) -> TopicPolicy:
        """Return a function that validates the topics of one request. Equal configurations are validated only once."""
        fine: set[frozenset[tuple[str, str]]] = set()

        def check(topic: TopicImage, configs: Mapping[str, str]) -> None:
            entries = frozenset(configs.items())
            if entries not in fine:
                try:
                    check_topic(config, configs)
                except ConfigError as error:
                    raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
                fine.add(entries)
            self._topic_policy.check_topic(topic, configs)

        return check

    async def delete_topics(
        self, names: Sequence[str], ids: Mapping[str, UUID], *, charge: Charge = charge_nobody
    ) -> list[TopicOutcome]:
        """Delete topics. Returns one outcome for each topic. A topic in ``ids`` is deleted only if it has that id.

        Raises TOPIC_DELETION_DISABLED if ``delete.topic.enable`` is false.
        """
        if not self._config().delete_topic_enable:
            raise KafkaError(
                ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled (delete.topic.enable=false)."
            )
        return await self._controller.submit(lambda image: delete_topics(image, names, ids, charge=charge))

    async def add_partitions(
        self, wanted: Sequence[NewPartitions], *, charge: Charge = charge_nobody, validate_only: bool = False
    ) -> list[TopicOutcome]:
        """Add partitions to topics, or only validate the request if ``validate_only``. Returns one outcome for each
        topic.

        Waits for a limited time until the new partitions can be used.
        """
        outcomes = await self._controller.submit(
            lambda image: add_partitions(image, wanted, rng=self._rng, charge=charge, validate_only=validate_only)
        )
        await self._until_usable()
        return outcomes

    # --- Configuration ---

    async def alter_configs(
        self, wanted: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> list[ConfigOutcome]:
        """Change configuration entries, or only validate the changes if ``validate_only``. Returns one outcome for each
        resource.

        If ``min.insync.replicas`` changes, the ELRs are updated as well.
        """
        outcomes = await self._controller.submit(
            lambda image: alter_configs(
                image, wanted, validate=self._validate, current_list=self._current_list, validate_only=validate_only
            )
        )
        if not validate_only:
            for change, outcome in zip(wanted, outcomes, strict=True):
                if outcome.error is None and change.resource.type is ResourceType.TOPIC:
                    entries = self._metadata.image.config(ResourceType.TOPIC, change.resource.name)
                    changed = {name: text for name, text in entries.items() if _names(change, name)}
                    _log_warnings_about(change.resource.name, changed)
        if not validate_only and any(_names(change, MIN_INSYNC_REPLICAS) for change in wanted):
            await self._controller.submit(partial(reconcile_leaders, rules=self._rules))
        return outcomes

    def _validate(self, resource: ConfigResource, entries: Mapping[str, str]) -> Mapping[str, str]:
        stored = entries
        try:
            if resource.type is ResourceType.TOPIC:
                check_topic(self._config(), entries)
            elif resource.type is ResourceType.GROUP:
                if not resource.name:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
                check_group(self._config(), entries)
            elif resource.type is ResourceType.BROKER:
                entries = self._seal.open(resource.name, entries)
                check_change(self._config_of(resource.name), entries, per_broker=bool(resource.name))
                stored = self._seal.seal(resource.name, stored)
            else:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"A {resource.type.name} has no changeable configuration.",
                )
        except ConfigError as error:
            # Kafka's error codes for invalid topic and broker configurations differ.
            of_broker = resource.type is ResourceType.BROKER
            code = ErrorCode.INVALID_REQUEST if of_broker else ErrorCode.INVALID_CONFIG
            raise KafkaError(code, str(error)) from error
        self._config_policy.check_configs(resource, entries)
        return stored

    def _config_of(self, broker: str) -> BrokerConfig:
        """Return the configuration for validating a change for ``broker``, which is an id, or "" for all brokers.

        This broker does not know the properties file of another broker, so it uses its own file instead.
        """
        config = self._config()
        if broker in ("", str(self._broker_id)):
            return config
        stored = self._metadata.image.config(ResourceType.BROKER, broker)
        threads = {key.name: stored[key.name] for key in THREAD_COUNTS if key.name in stored}
        return config.with_dynamic(config.cluster_default, threads)

    def _current_list(self, resource: ConfigResource, name: str) -> list[str]:
        if resource.type is ResourceType.TOPIC:
            key = TopicConfig.KEYS.get(name)
            topic = TopicConfig(self._config(), self._metadata.image.config(ResourceType.TOPIC, resource.name))
            value = getattr(topic, key.attribute) if key is not None else ()
            is_list = key is not None and key.type is ConfigType.LIST
        else:
            config = self._config()
            known = config.key(name)
            value = getattr(config, known.attribute) if known is not None else ()
            is_list = known is not None and known.type is ConfigType.LIST
        if not is_list:
            _not_a_list(name)
        return list(value or ())


def _log_warnings_about(topic: str, configs: Mapping[str, str]) -> None:
    """Log a warning for each setting that a client has just made for a topic and that has no effect."""
    for warning in warnings_about_topic(configs):
        _log.warning("a topic's setting has no effect", extra={"topic": topic, "warning": warning})


def _names(change: ConfigChange, key: str) -> bool:
    return key in (change.replacement or ()) or any(entry.name == key for entry in change.changes)


def _not_a_list(name: str) -> NoReturn:
    raise KafkaError(ErrorCode.INVALID_CONFIG, f"Append and subtract apply only to lists, and {name} is not a list.")
