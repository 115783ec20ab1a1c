"""Loads mechanisms by name (entry points ``parley.sasl_mechanisms``), and callback handlers by class."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from parley.broker.config import ConfigError, Problem
from parley.broker.config.key_definition import closest
from parley.broker.config.plugins import instance_of
from parley.broker.security.sasl.mechanism import MakeMechanism, MechanismSetup

GROUP = "parley.sasl_mechanisms"
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "GSSAPI": "parley.broker.security.sasl.gssapi:make",
        "OAUTHBEARER": "parley.broker.security.sasl.oauthbearer.mechanism:make",
        "PLAIN": "parley.broker.security.sasl.plain:make",
        "SCRAM-SHA-256": "parley.broker.security.sasl.scram:make_sha_256",
        "SCRAM-SHA-512": "parley.broker.security.sasl.scram:make_sha_512",
    }
)
"""The mechanisms that come with Parley. Each is imported when a listener offers it."""
_HANDLER_KEY = "sasl.server.callback.handler.class"


def maker(name: str) -> MakeMechanism:
    """Return the function that creates a mechanism. Raises ConfigError if there is no mechanism with this name, or if
    it cannot be imported."""
    target = BUILT_IN.get(name) or _third_party().get(name)
    if target is None:
        known = sorted({*BUILT_IN, *_third_party()})
        meant = closest(name, known)
        hint = f": did you mean {meant}?" if meant else ""
        raise ConfigError([Problem("sasl.enabled.mechanisms", name, f"among {', '.join(known)}{hint}")])
    module, _, attribute = target.partition(":")
    try:
        made: MakeMechanism = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            [Problem("sasl.enabled.mechanisms", name, f"a mechanism that can be imported: {error}")]
        ) from error
    return made


def load_callback_handler(setup: MechanismSetup, method: str) -> Any:
    """Return an instance of a mechanism's callback handler, which must have the method ``method``.

    The class is called with the options of the JAAS entry. Raises ConfigError if it cannot be loaded.
    """
    return instance_of(_HANDLER_KEY, setup.callback_handler, method, setup.options)


def _third_party() -> Mapping[str, str]:
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    return {point.name: point.value for point in entry_points(group=GROUP)}
