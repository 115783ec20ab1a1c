"""The keys that the coordination stores add to the configuration (``parley.consensus.store_config``).

The keys of the built-in stores are always known. The keys of another package's store are known only to configurations
that contain one of them: only then is that package imported. Store keys are read-only, so they can only be set in the
file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from parley.broker.config.key_definition import ConfigType, Importance, Key
from parley.consensus.built_in_stores import CONFIGS
from parley.consensus.errors import BadConfig
from parley.consensus.store_config import ConfigKey, StoreConfig

if TYPE_CHECKING:
    from parley.broker.config.key_definition import Facts


def _key(key: ConfigKey) -> Key[Any]:
    facts: Facts = {
        "importance": Importance(key.importance.value),
        "unit": key.unit,
        "ignored": key.ignored,
        "since": key.since,
    }
    if key.at_least is not None:
        facts["at_least"] = key.at_least
    return Key(ConfigType[key.type.name], key.name, key.default, key.doc, facts)


def keys_of(store: StoreConfig) -> dict[str, Key[Any]]:
    """Return the keys of a store by name."""
    return {key.name: _key(key) for key in store.keys}


BUILT_IN_KEYS: Mapping[str, Key[Any]] = MappingProxyType(
    {name: key for store in CONFIGS.values() for name, key in keys_of(store).items()}
)
"""The keys of all built-in stores."""
UNUSED: Mapping[str, str] = MappingProxyType(
    {name: why for store in CONFIGS.values() for name, why in store.unused.items()}
)
"""Keys that the built-in stores accept but do not use, with the reasons, like ``parley.broker.config.retired``."""
SESSION_TIMEOUTS = tuple(key for store in CONFIGS.values() if (key := store.session_timeout_key))
"""Keys of built-in stores that replace ``coordination.session.timeout.ms`` if only they are set."""


def third_party_keys(unknown: Iterable[str]) -> Mapping[str, Key[Any]]:
    """Return all keys of the third-party stores to which these unknown names belong.

    Ignores a store that cannot be loaded: its keys remain unknown, and opening the store reports the reason.
    """
    schemes = dict.fromkeys(name.partition(".")[0] for name in unknown if "." in name)
    if not schemes:
        return MappingProxyType({})
    from parley.consensus.registry import third_party_config  # slow to import, and rarely needed

    found: dict[str, Key[Any]] = {}
    for scheme in schemes:
        try:
            store = third_party_config(scheme)
        except BadConfig:
            continue
        if store is not None:
            found |= keys_of(store)
    return MappingProxyType(found)
