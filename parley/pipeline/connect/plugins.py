"""The classes that a configuration may name: connectors, converters, transforms, predicates.

A class is found by

* its name in Kafka (``org.apache.kafka.connect.json.JsonConverter``) or the last part of it, with or without the
ending for its kind (``FileStreamSource`` for ``FileStreamSourceConnector``);
* its name as an entry point of the group ``parley.connect``;
* its location: ``package.module:Class`` or ``package.module.Class``, also in a folder of ``plugin.path``.

``$Key`` or ``$Value`` after the name of a transform selects the part of a record that it changes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final, TypeVar, cast

from parley.pipeline.connect.connector import SinkConnector, SourceConnector
from parley.pipeline.connect.converters import Converter, HeaderConverter
from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.connect.transforms import KeyOrValue, Predicate, Side, Transform

GROUP: Final = "parley.connect"
_KINDS: Final[Mapping[str, type]] = {
    "source": SourceConnector,
    "sink": SinkConnector,
    "converter": Converter,
    "header_converter": HeaderConverter,
    "transformation": Transform,
    "predicate": Predicate,
}
"""Kafka's name of each kind, and the base class of the kind."""
_ENDINGS: Final = ("Connector", "Converter", "HeaderConverter", "Transformation", "Predicate")

_CONNECT: Final = "org.apache.kafka.connect"
_HERE: Final = "parley.pipeline.connect"
_SIDED: Final = {
    "Cast": "cast",
    "ExtractField": "fields",
    "Flatten": "flatten",
    "HeaderFrom": "headers",
    "HoistField": "fields",
    "InsertField": "fields",
    "MaskField": "mask",
    "ReplaceField": "fields",
    "SetSchemaMetadata": "schemas",
    "TimestampConverter": "timestamps",
}
_WHOLE: Final = {
    "DropHeaders": "headers",
    "Filter": "routing",
    "InsertHeader": "headers",
    "RegexRouter": "routing",
    "TimestampRouter": "routing",
    "ValueToKey": "fields",
}
_NUMBERS: Final = ("Boolean", "ByteArray", "Double", "Float", "Integer", "Long", "Short")
_PREDICATES: Final = ("HasHeaderKey", "RecordIsTombstone", "TopicNameMatches")

_CONNECTORS: Final = f"{_HERE}.connectors"
_OURS: Final = (
    "delta:DeltaSinkConnector",
    "http:HttpSinkConnector",
    "iceberg:IcebergSinkConnector",
    "parquet:ParquetSinkConnector",
    "sql.sink:SqlSinkConnector",
    "sql.source:SqlSourceConnector",
)

SHIPPED: Final[Mapping[str, str]] = {
    **{
        f"{_CONNECT}.transforms.{name}${side}": f"{_HERE}.transforms.{module}:{name}${side}"
        for name, module in _SIDED.items()
        for side in ("Key", "Value")
    },
    **{f"{_CONNECT}.transforms.{name}": f"{_HERE}.transforms.{module}:{name}" for name, module in _WHOLE.items()},
    **{f"{_CONNECT}.transforms.predicates.{name}": f"{_HERE}.transforms.predicates:{name}" for name in _PREDICATES},
    **{f"{_CONNECT}.converters.{one}Converter": f"{_HERE}.converters.primitives:{one}Converter" for one in _NUMBERS},
    f"{_CONNECT}.storage.StringConverter": f"{_HERE}.converters.primitives:StringConverter",
    f"{_CONNECT}.storage.SimpleHeaderConverter": f"{_HERE}.converters.simple_header:SimpleHeaderConverter",
    "io.confluent.connect.avro.AvroConverter": f"{_HERE}.converters.avro:AvroConverter",
    f"{_CONNECT}.json.JsonConverter": f"{_HERE}.converters.json_converter:JsonConverter",
    **{
        f"{_CONNECT}.file.FileStream{end}Connector": f"{_HERE}.connectors.file:FileStream{end}Connector"
        for end in ("Sink", "Source")
    },
    **{f"{_CONNECTORS}.{place.replace(':', '.')}": f"{_CONNECTORS}.{place}" for place in _OURS},
}
"""Kafka's name of each class, and its location."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plugin:
    """A class that a configuration can name. ``kinds`` are Kafka's names of its kinds: source, sink, converter, ..."""

    name: str
    target: str
    kinds: tuple[str, ...]
    version: str


class Plugins:
    """The classes that a configuration may name. ``path`` are further folders with modules."""

    def __init__(self, path: Sequence[str] = ()) -> None:
        for folder in path:
            if folder not in sys.path:
                sys.path.append(folder)
        self._targets = {**SHIPPED, **{one.name: one.value for one in entry_points(group=GROUP)}}
        self._by_alias: dict[str, str] = {}
        for name in self._targets:
            for alias in _aliases(name):
                self._by_alias.setdefault(alias, name)

    def all(self) -> Iterator[Plugin]:
        """Yield every known class that can be imported, sorted by name. Aliases are left out."""
        for name, target in sorted(self._targets.items()):
            try:
                found = _located(target)[0]
            except ConfigError:
                continue
            kinds = tuple(kind for kind, base in _KINDS.items() if issubclass(found, base))
            yield Plugin(name, target, kinds, str(getattr(found, "version", "0")))

    def load(self, name: str, base: type[T]) -> type[T]:
        """Return the class with this name. Raises ConfigError if there is no such class or it is not a ``base``."""
        found = _located(self._target(name))[0]
        if not issubclass(found, base):
            raise ConfigError(f"{name} is not a {base.__name__}.")
        return found

    def make(self, name: str, base: type[T]) -> T:
        """Create an object of this class. A ``KeyOrValue`` transform gets its side, all other classes get no arguments.

        Raises ConfigError like ``load``.
        """
        found, side = _located(self._target(name))
        if not issubclass(found, base):
            raise ConfigError(f"{name} is not a {base.__name__}.")
        return cast(T, found(side) if issubclass(found, KeyOrValue) else found())

    def _target(self, name: str) -> str:
        known = self._by_alias.get(name)
        if known is not None:
            return self._targets[known]
        if "." in name or ":" in name:
            return name
        raise ConfigError(f"Class {name} could not be found.")


def kafkas_name(kind: type) -> str:
    """Return a class's name in Kafka, without a transform's suffix ``$Key`` or ``$Value``. If the class has no such
    name, return its location."""
    return _KAFKAS.get((kind.__module__, kind.__qualname__)) or f"{kind.__module__}.{kind.__qualname__}"


_KAFKAS: Final = {
    tuple(place.partition("$")[0].split(":")): name.partition("$")[0]
    for name, place in SHIPPED.items()
    if not name.startswith(_HERE)
}


def _aliases(name: str) -> Iterator[str]:
    yield name
    simple = name.rpartition(".")[2]
    yield simple
    for ending in _ENDINGS:
        if simple.endswith(ending) and simple != ending:
            yield simple.removesuffix(ending)


@cache
def _located(target: str) -> tuple[type[Any], Side]:
    """Return the class at ``module:Class``, and the side that ``$Key`` or ``$Value`` at its end selects. Raises
    ConfigError.
    """
    place, _, side = target.partition("$")
    module, colon, name = place.partition(":")
    if not colon:
        module, _, name = place.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"Class {target} could not be found: {error}") from error
    if not isinstance(found, type):
        raise ConfigError(f"{target} is not a class.")
    if issubclass(found, KeyOrValue) and side not in ("Key", "Value"):
        raise ConfigError(f"{target} needs $Key or $Value after its name.")
    return found, Side(side or "Value")
