"""The current configuration of this broker: its properties file and later dynamic changes (KIP-226).

A part that needs current values calls the ``DynamicConfig`` each time. A part that must act on changes subscribes.
``dynamic_changes.py`` validates a change before the controller stores it. The definition of each key
(``key_definition.py``) specifies whether it can change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.config.sealed_passwords import PasswordSeal, UnreadablePasswords
from parley.broker.metadata.changes import ConfigReplaced, Delta
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ResourceType

_log = logging.getLogger(__name__)


class DynamicConfig:
    """The current ``BrokerConfig``, which follows the metadata. Call it to get the configuration."""

    def __init__(self, broker_id: int, static: BrokerConfig) -> None:
        self._broker_id = broker_id
        self._current = static
        self._seal = PasswordSeal(static)
        self._unreadable = UnreadablePasswords()
        self._subscribers: list[Callable[[BrokerConfig], None]] = []

    def __call__(self) -> BrokerConfig:
        return self._current

    @property
    def unreadable(self) -> UnreadablePasswords:
        """The stored passwords that are not in the current configuration because they cannot be decrypted."""
        return self._unreadable

    def subscribe(self, subscriber: Callable[[BrokerConfig], None]) -> None:
        """Call ``subscriber(config)`` after every subsequent change. The subscriber must neither block nor raise."""
        self._subscribers.append(subscriber)

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Apply the configuration changes of a metadata change. The broker's metadata calls this for every change.

        If the stored configuration is invalid, this broker logs the problems and keeps its previous configuration.
        """
        concerned = ("", str(self._broker_id))
        if not any(
            isinstance(change, ConfigReplaced)
            and change.resource.type is ResourceType.BROKER
            and change.resource.name in concerned
            for change in delta.changes
        ):
            return
        before = set(self._current.warnings)
        stored = [image.config(ResourceType.BROKER, name) for name in concerned]
        opened = [self._seal.open(name, entries) for name, entries in zip(concerned, stored, strict=True)]
        try:
            self._current = self._current.with_dynamic(*opened)
        except ConfigError as error:
            # Each change was validated before it was stored, but possibly by another version of Parley.
            _log.error(
                "the stored configuration is not allowed: this broker keeps its previous one",
                extra={"problems": str(error)},
            )
            return
        self._unreadable = UnreadablePasswords(
            *(frozenset(entries.keys() - found.keys()) for entries, found in zip(stored, opened, strict=True))
        )
        for warning in self._current.warnings:
            if warning not in before:
                _log.warning("a dynamic setting has no effect or is unknown", extra={"warning": warning})
        for subscriber in self._subscribers:
            subscriber(self._current)
