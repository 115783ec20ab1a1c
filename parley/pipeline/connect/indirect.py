"""Values that a configuration only names: ``${provider:path:key}`` (KIP-297, KIP-421).

Secrets then stand in a file or in the environment, and neither in topics nor in answers of the REST API: names are
resolved where a connector or task is started, each time anew. The worker's configuration says which there are::

    config.providers=file,env
    config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider

``FileConfigProvider`` reads a properties file, ``DirectoryConfigProvider`` a file of a folder for each key,
``EnvVarConfigProvider`` the environment (``${env::KEY}`` or ``${env:KEY}``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from parley.pipeline.connect.errors import ConfigError

__all__ = ["Providers"]

_NAME: Final = re.compile(r"\$\{([^}:]+):(?:([^}]*):)?([^}:]*)\}")
_FILE_BYTES_MAX: Final = 1 << 20

Look = Callable[[str, str], str]


class Providers:
    """The providers of a worker. Raises ConfigError for a class that is not known."""

    def __init__(self, worker: Mapping[str, str]) -> None:
        self._looks: dict[str, Look] = {}
        for name in filter(None, (one.strip() for one in worker.get("config.providers", "").split(","))):
            given = worker.get(f"config.providers.{name}.class", "")
            look = _LOOKS.get(given.rpartition(".")[2])
            if look is None:
                raise ConfigError(
                    f"Invalid value {given} for configuration config.providers.{name}.class: it is one of "
                    f"{', '.join(_LOOKS)}"
                )
            self._looks[name] = look

    def resolve(self, config: Mapping[str, str]) -> dict[str, str]:
        """The configuration with values in the place of names. Raises ConfigError where one cannot be had.

        What names no provider there is stays as it is.
        """
        return {key: _NAME.sub(lambda found, key=key: self._value(key, found), text) for key, text in config.items()}  # type: ignore[misc]

    def _value(self, key: str, found: re.Match[str]) -> str:
        look = self._looks.get(found[1])
        if look is None:
            return found[0]
        try:
            return look(found[2] or "", found[3])
        except (OSError, KeyError, ValueError) as error:
            raise ConfigError(f"The value of {key} cannot be had: {found[0]}: {type(error).__name__} {error}") from None


def _of_file(path: str, key: str) -> str:
    for line in _text(Path(path)).splitlines():
        name, separator, value = line.partition("=")
        if separator and name.strip() == key and not name.lstrip().startswith(("#", "!")):
            return value.strip()
    raise KeyError(key)


def _of_folder(path: str, key: str) -> str:
    if key in ("", ".", "..") or "/" in key:
        raise ValueError(f"{key!r} is no file's name")
    return _text(Path(path) / key)


def _of_environment(path: str, key: str) -> str:
    return os.environ[key]


def _text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(_FILE_BYTES_MAX)


_LOOKS: Final[Mapping[str, Look]] = {
    "FileConfigProvider": _of_file,
    "DirectoryConfigProvider": _of_folder,
    "EnvVarConfigProvider": _of_environment,
}
