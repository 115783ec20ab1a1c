"""The keys that a store adds to a broker's configuration.

A backend class declares them as ``Backend.config``. Every key begins with the store's scheme and a dot, for example
``zookeeper.connect``, so a key identifies the store to which it belongs. The broker checks the values, shows the keys
in DescribeConfigs (never the secrets among them) and warns about misspelled ones, without knowing any store by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from parley.light_dataclasses import dataclass

Given: TypeAlias = Mapping[str, str]
"""A broker's properties as written. Values that the broker has not checked may be malformed."""


class ValueType(Enum):
    """The type of a key's value. The names are those of Kafka's ``ConfigDef.Type``."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"
    LIST = "list"
    PASSWORD = "password"
    """A secret: hidden in every log line and response. Has no default."""


class Importance(Enum):
    """How likely it is that an operator needs the key."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """The definition of one key. Store keys are read-only: a broker reads them when it starts."""

    name: str
    type: ValueType
    default: bool | int | str | tuple[str, ...] | None
    doc: str
    """The description of the key in the documentation and in DescribeConfigs responses."""
    importance: Importance = Importance.MEDIUM
    at_least: int | None = None
    """The lowest number allowed, or None for no limit."""
    unit: str = ""
    """The unit of a number, such as ``ms``."""
    ignored: str = ""
    """Why the key has no effect, or "" if it has one."""
    since: str = ""
    """The version of Kafka that introduced the key, or "" for a key that Kafka does not have."""

    @property
    def is_secret(self) -> bool:
        """True if the value must not be shown."""
        return self.type is ValueType.PASSWORD


def _no_options(given: Given) -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The configuration keys of one store, and how the store uses them."""

    title: str = ""
    """The heading of the keys in the documentation; ``doc`` is the text below it."""
    doc: str = ""
    keys: tuple[ConfigKey, ...] = ()
    unused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Keys that the store accepts but does not use, each with the reason. A name that ends with a dot includes all
    names that begin with it."""
    address_key: str = ""
    """The key that names the store's servers, or "" if only ``coordination.url`` can do so. If this key is set and
    ``coordination.url`` is not, ``address`` returns the address of the store, or raises BadConfig."""
    address: Callable[[Given], str] | None = None
    options: Callable[[Given], Mapping[str, object]] = _no_options
    """Returns the options for ``Backend.from_url`` in addition to each address of this store, such as secrets."""
    session_timeout_key: str = ""
    """A key that replaces ``coordination.session.timeout.ms`` if only this key is set."""


NO_CONFIG = StoreConfig()
"""The ``Backend.config`` of a store without configuration keys."""
