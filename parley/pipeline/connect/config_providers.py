"""Values that a connector's configuration only refers to: ``${provider:path:key}`` (KIP-297).

This keeps secrets in a file or in the environment, and out of topics and responses of the REST API. Each start of a
connector or a task resolves the references. The worker's configuration declares the providers, as
``parley.configuration.providers`` describes.
"""

from __future__ import annotations

from collections.abc import Mapping

from parley.configuration.providers import ConfigProviders, UnresolvedValue
from parley.pipeline.connect.errors import ConfigError


class Providers:
    """The providers of a worker. Raises ConfigError if a class is unknown."""

    def __init__(self, worker: Mapping[str, str]) -> None:
        try:
            self._providers = ConfigProviders(worker)
        except UnresolvedValue as error:
            raise ConfigError(str(error)) from error

    def resolve(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return the configuration with the references resolved. Raises ConfigError if a value is unavailable."""
        try:
            return self._providers.resolve(config)
        except UnresolvedValue as error:
            raise ConfigError(str(error)) from error
