"""Converts the settings of an embedded broker from Python values to the strings of a properties file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path

from parley.broker.config import BrokerConfig
from parley.broker.config.key_definition import closest, value_text
from parley.storage.checkpoints import make_directories

Setting = str | int | float | bool | PathLike[str] | list[str] | tuple[str, ...]
"""The types of values: a string as in a properties file, or the corresponding Python value."""


def given_settings(properties: Mapping[str, Setting] | None, settings: Mapping[str, Setting]) -> dict[str, str]:
    """Return the text of each setting by key. ``properties`` contains the keys as they are, ``settings`` contains them
    with underscores instead of dots. If both contain a key, ``settings`` takes precedence.

    Raises ValueError for an invalid value, or TypeError for an unknown setting.
    """
    return {**_from_properties(properties), **_from_settings(settings)}


def prepare_folders(directories: tuple[str, ...]) -> None:
    """Create the first data folder, which also contains the embedded store.

    Raises RuntimeError if the folder cannot be created or is not writable.
    """
    first, is_made = directories[0], False
    try:
        make_directories(Path(first))
        is_made = True
        with tempfile.TemporaryFile(dir=first):
            pass
    except OSError as error:
        problem = "is not writable" if is_made else "does not exist and cannot be created"
        raise RuntimeError(
            f"the data folder {first} {problem} ({error.strerror or error}): pass a folder as data_dir that this user "
            "can write to"
        ) from error


def _from_properties(properties: Mapping[str, Setting] | None) -> dict[str, str]:
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        raise ValueError(
            f"properties must be a mapping of keys to values, not {properties!r}; "
            "for a file pass parley.broker.config.read_configuration(path)"
        )
    for name in properties:
        if not isinstance(name, str):
            raise ValueError(
                f'the key {name!r} is not a string: write it as in server.properties, for example "num.partitions"'
            )
    return {name: _as_text(name, value) for name, value in properties.items()}


def _from_settings(settings: Mapping[str, Setting]) -> dict[str, str]:
    names = {key.attribute: name for name, key in BrokerConfig.KEYS.items()}
    unknown = sorted(settings.keys() - names.keys())
    if unknown:
        raise TypeError("; ".join(_unknown(name, names) for name in unknown))
    return {names[attribute]: _as_text(attribute, value) for attribute, value in settings.items()}


def _unknown(name: str, names: Mapping[str, str]) -> str:
    meant = closest(name, names)
    return f"no such setting: {name}" + (f"; did you mean {meant}?" if meant else "")


def _as_text(name: str, value: object) -> str:
    if value is None:
        raise ValueError(f"{name}=None is not a value: leave {name} out to use its default")
    return ",".join(_texts(name, value))


def _texts(name: str, value: object) -> Iterator[str]:
    match value:
        case str() | bool() | int() | float():
            yield value_text(value)
        case PathLike() if isinstance(path := fspath(value), str):
            yield path
        case list() | tuple():
            for element in value:
                yield from _texts(name, element)
        case _:
            raise ValueError(
                f"{name}={value!r} is of {type(value)}: use a string, a number, True or False, or a list of strings"
            )
