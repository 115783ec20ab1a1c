"""What a program may write as settings of an embedded broker, and the texts it becomes, as in a properties file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from os import PathLike, fspath

from parley.broker.config import BrokerConfig
from parley.broker.config.definition import closest, value_text

Setting = str | int | float | bool | PathLike[str] | list[str] | tuple[str, ...]
"""What a value may be: as in a properties file, or as one would write it in Python."""


def given_settings(properties: Mapping[str, Setting] | None, settings: Mapping[str, Setting]) -> dict[str, str]:
    """The settings by their keys: ``properties`` by the keys themselves, ``settings`` with underscores for dots.

    Raises ValueError for what is no value, TypeError for a setting that does not exist.
    """
    return {**_from_properties(properties), **_from_settings(settings)}


def prepare_folders(directories: tuple[str, ...]) -> None:
    """Make the folders. A broker lives on with the others when one fails, but the first has the embedded store too."""
    first = directories[0]
    try:
        os.makedirs(first, exist_ok=True)
        with tempfile.TemporaryFile(dir=first):
            pass
    except OSError as error:
        raise RuntimeError(
            f"the data folder {first} cannot be written ({error.strerror or error}): correct its rights, or name "
            "another one as data_dir"
        ) from error


def _from_properties(properties: Mapping[str, Setting] | None) -> dict[str, str]:
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        raise ValueError(
            f"properties is a mapping of keys to values, not {properties!r}; "
            "for a file give broker.config.read_properties(path)"
        )
    for name in properties:
        if not isinstance(name, str):
            raise ValueError(f'the key {name!r} is no text: write it as in server.properties, like "num.partitions"')
    return {name: _as_text(name, value) for name, value in properties.items()}


def _from_settings(settings: Mapping[str, Setting]) -> dict[str, str]:
    names = {key.attribute: name for name, key in BrokerConfig.KEYS.items()}
    unknown = sorted(settings.keys() - names.keys())
    if unknown:
        raise TypeError("; ".join(_unknown(name, names) for name in unknown))
    return {names[attribute]: _as_text(attribute, value) for attribute, value in settings.items()}


def _unknown(name: str, names: Mapping[str, str]) -> str:
    meant = closest(name, names)
    return f"no such setting: {name}" + (f"; is {meant} meant?" if meant else "")


def _as_text(name: str, value: object) -> str:
    if value is None:
        raise ValueError(f"{name}=None says nothing: leave {name} out to have its default")
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
                f"{name}={value!r} is of {type(value)}: give a text, a number, True or False, or a list of texts"
            )
