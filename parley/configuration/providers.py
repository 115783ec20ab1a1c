"""Resolves references to values outside a configuration: ``${provider:path:key}`` (KIP-297, KIP-421).

The configuration itself declares the providers, and chooses their names::

    config.providers=file,env
    config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
    config.providers.file.param.allowed.paths=/etc/kafka

``FileConfigProvider`` reads a properties file, ``DirectoryConfigProvider`` a file per key in a folder, and
``EnvVarConfigProvider`` the environment (``${env:KEY}``). Other packages add providers with an entry point of the group
``parley.config_providers``: a function that takes the parameters and returns a ``Lookup``. The name of the entry point
is then used as the class. References to undeclared providers stay unchanged. No error contains a value that was read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from parley.configuration.properties import parse_properties, read_properties

__all__ = ["ConfigProviders", "Lookup", "UnresolvedValue", "is_about_providers", "read_configuration"]

Lookup = Callable[[str, str], str]
"""Returns the value for a path and a key. Raises OSError, KeyError or ValueError if there is none."""

_PREFIX: Final = "config.providers"
_ENTRY_POINTS: Final = "parley.config_providers"
_NAME: Final = re.compile(r"\$\{([^}:]+):(?:([^}:]*):)?([^}]*)\}")
_FILE_LENGTH_MAX: Final = 1 << 20


class UnresolvedValue(ValueError):
    """Raised if a provider is unknown or cannot supply a value. The message names it and the reason, but no secret."""


class ConfigProviders:
    """The providers that a configuration declares. The constructor raises UnresolvedValue for an unknown class."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        names = [name for name in (each.strip() for each in properties.get(_PREFIX, "").split(",")) if name]
        self._lookups = {name: _lookup(name, properties) for name in names}

    def resolve(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the properties with the references to declared providers replaced by their values. Blocks.

        Raises UnresolvedValue if a provider cannot supply a value.
        """
        if not self._lookups:
            return dict(properties)
        return {
            key: _NAME.sub(lambda found, key=key: self._value(key, found), text)  # type: ignore[misc]
            for key, text in properties.items()
        }

    def _value(self, key: str, found: re.Match[str]) -> str:
        lookup = self._lookups.get(found[1])
        if lookup is None:
            return found[0]
        try:
            return lookup(found[2] or "", found[3])
        except KeyError:
            reason = "there is no such key"
        except OSError as error:
            reason = error.strerror or type(error).__name__
        except ValueError as error:
            reason = str(error) if isinstance(error, UnresolvedValue) else "its source is malformed"
        raise UnresolvedValue(f"the value of {key} cannot be resolved: {found[0]}: {reason}")


def read_configuration(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the entries of a properties file, with references resolved. Raises OSError, or ValueError if the file is
    malformed or a value cannot be resolved."""
    properties = read_properties(path)
    return ConfigProviders(properties).resolve(properties)


def is_about_providers(key: str) -> bool:
    """Return True if ``key`` declares providers, or a provider's class or parameter."""
    return key == _PREFIX or key.startswith(f"{_PREFIX}.")


def _lookup(name: str, properties: Mapping[str, str]) -> Lookup:
    class_name = properties.get(f"{_PREFIX}.{name}.class", "").strip()
    prefix = f"{_PREFIX}.{name}.param."
    parameters = {key.removeprefix(prefix): text for key, text in properties.items() if key.startswith(prefix)}
    make = _MAKERS.get(class_name.rpartition(".")[2]) or _third_party().get(class_name)
    if make is None:
        known = ", ".join((*_MAKERS, *_third_party()))
        raise UnresolvedValue(f"{_PREFIX}.{name}.class={class_name}: it must be one of {known}")
    return make(parameters)


def _third_party() -> dict[str, Callable[[Mapping[str, str]], Lookup]]:
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    return {point.name: point.load() for point in entry_points(group=_ENTRY_POINTS)}


# --- Kafka's providers ---


def _files(parameters: Mapping[str, str]) -> Lookup:
    def lookup(path: str, key: str) -> str:
        return parse_properties(_text(_allowed(path, parameters)))[key]

    return lookup


def _folders(parameters: Mapping[str, str]) -> Lookup:
    def lookup(path: str, key: str) -> str:
        if key in ("", ".", "..") or "/" in key:
            raise UnresolvedValue("the key is not the name of a file")
        return _text(_allowed(path, parameters) / key)

    return lookup


def _environment(parameters: Mapping[str, str]) -> Lookup:
    try:
        allowed = re.compile(parameters.get("allowlist.pattern", ".*"))
    except re.error as error:
        raise UnresolvedValue(f"allowlist.pattern is not a regular expression: {error}") from None

    def lookup(_: str, key: str) -> str:
        if not allowed.fullmatch(key):
            raise UnresolvedValue("allowlist.pattern does not match it")
        return os.environ[key]

    return lookup


def _allowed(path: str, parameters: Mapping[str, str]) -> Path:
    """Return the path with ``..`` resolved. Raises UnresolvedValue if ``allowed.paths`` is set and no path in it
    contains this path."""
    normal = Path(os.path.normpath(path))
    roots = [Path(root.strip()) for root in parameters.get("allowed.paths", "").split(",") if root.strip()]
    if roots and not any(normal.is_relative_to(root) for root in roots):
        raise UnresolvedValue("the path is not in allowed.paths")
    return normal


def _text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        text = file.read(_FILE_LENGTH_MAX + 1)
    if len(text) > _FILE_LENGTH_MAX:
        raise UnresolvedValue(f"the file has more than {_FILE_LENGTH_MAX} characters")
    return text


_MAKERS: Final[Mapping[str, Callable[[Mapping[str, str]], Lookup]]] = {
    "FileConfigProvider": _files,
    "DirectoryConfigProvider": _folders,
    "EnvVarConfigProvider": _environment,
}
