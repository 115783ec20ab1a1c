"""Values that a connector's configuration only names: ``${provider:path:key}`` (KIP-297).

Secrets then are in a file or in the environment, and neither in topics nor in responses of the REST API: names are
resolved each time a connector or a task starts. The worker's configuration declares the providers, as
``parley.configuration.providers`` describes.
"""

from __future__ import annotations

from collections.abc import Mapping

from parley.configuration.providers import ConfigProviders, UnresolvedValue
from parley.pipeline.connect.errors import ConfigError

__all__ = ["Providers"]


class Providers:
    """The providers of a worker. Raises ConfigError for a class that is not known."""

    def __init__(self, worker: Mapping[str, str]) -> None:
        try:
            self._providers = ConfigProviders(worker)
        except UnresolvedValue as error:
            raise ConfigError(str(error)) from error

    def resolve(self, config: Mapping[str, str]) -> dict[str, str]:
        """The configuration with the values that it names. Raises ConfigError if one cannot be had."""
        try:
            return self._providers.resolve(config)
        except UnresolvedValue as error:
            raise ConfigError(str(error)) from error
