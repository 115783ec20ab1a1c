"""The configuration keys of connectors, converters and transforms: types, defaults, checks, and their JSON.

``ConfigDef().define("file", STRING, None).doc("The file to read.")`` lists the keys. ``parse`` converts texts to typed
values and raises at the first bad one. ``validate`` finds all problems of every key, as
``PUT /connector-plugins/{name}/config/validate`` shows them. Names, types and the JSON are Kafka's (``ConfigDef``,
``ConfigInfos``).

Types in Python: BOOLEAN ``bool``; SHORT, INT, LONG ``int``; DOUBLE ``float``; STRING, CLASS ``str``; LIST
``list[str]``; PASSWORD ``Password``, whose text is ``[hidden]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Self

from parley.pipeline.connect.errors import ConfigError


class ConfigType(Enum):
    BOOLEAN = "BOOLEAN"
    STRING = "STRING"
    INT = "INT"
    SHORT = "SHORT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    LIST = "LIST"
    CLASS = "CLASS"
    PASSWORD = "PASSWORD"


class Importance(Enum):
    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = ConfigType
HIGH, MEDIUM, LOW = Importance


class Width(Enum):
    NONE = "NONE"
    SHORT = "SHORT"
    MEDIUM = "MEDIUM"
    LONG = "LONG"


@dataclass(frozen=True, slots=True)
class Password:
    """A secret. Only ``value`` reveals the text."""

    value: str = field(repr=False)

    def __str__(self) -> str:
        return "[hidden]"


class _NoDefault:
    def __repr__(self) -> str:
        return "NO_DEFAULT"

    def __reduce__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = _NoDefault()
"""The default of a required key."""

Validator = Callable[[str, Any], None]
"""A function that checks a value. Called with the key's name and the typed value; raises ConfigError if it is not
allowed.
"""
Recommender = Callable[[str, Mapping[str, Any]], Sequence[Any]]
"""A function that recommends values. Called with the key's name and the values of all keys; returns the values to
choose from, or an empty list if any is allowed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """A configuration key. ``is_visible`` gets the key's name and all values, and returns True if the key matters."""

    name: str
    type: ConfigType
    default: Any = NO_DEFAULT
    importance: Importance = Importance.MEDIUM
    doc: str = ""
    validator: Validator | None = None
    group: str | None = None
    order: int = -1
    width: Width = Width.NONE
    display_name: str = ""
    dependents: tuple[str, ...] = ()
    recommender: Recommender | None = None
    is_visible: Callable[[str, Mapping[str, Any]], bool] | None = None

    @property
    def required(self) -> bool:
        return self.default is NO_DEFAULT

    @property
    def title(self) -> str:
        """The name to display."""
        return self.display_name or self.name

    def parse(self, given: Any) -> Any:
        """Return the typed value of a given value, usually a text; None for None. Raises ConfigError if it is not a
        value of the key's type.
        """
        return None if given is None else _PARSERS[self.type](self.name, given)

    def check(self, value: Any) -> None:
        """Raise ConfigError unless the typed value is allowed."""
        if self.validator is not None:
            self.validator(self.name, value)


@dataclass(slots=True)
class ConfigValue:
    """The result for one key: its typed value (None if it cannot be parsed), the recommended values, its errors, and
    True if it is visible.
    """

    name: str
    value: Any = None
    recommended: Sequence[Any] = ()
    errors: list[str] = field(default_factory=list)
    visible: bool = True


@dataclass(frozen=True, slots=True)
class ConfigInfo:
    """A key and its value. ``definition`` is None if an error concerns a name for which no key is defined."""

    definition: ConfigKey | None
    value: ConfigValue


@dataclass(frozen=True, slots=True)
class ConfigInfos:
    """A validated configuration, as ``PUT /connector-plugins/{name}/config/validate`` returns it."""

    name: str
    groups: tuple[str, ...]
    configs: tuple[ConfigInfo, ...]

    @property
    def error_count(self) -> int:
        return sum(len(one.value.errors) > 0 for one in self.configs)

    def problems(self) -> list[str]:
        """Return the error messages of all keys."""
        return [error for one in self.configs for error in one.value.errors]


class ConfigDef:
    """An ordered set of keys, created once, next to the class that it configures."""

    def __init__(self, keys: Iterable[ConfigKey] = ()) -> None:
        self.keys: dict[str, ConfigKey] = {one.name: one for one in keys}
        self._group: str | None = None

    def group(self, name: str) -> Self:
        """Put all keys that are defined after this call into the group."""
        self._group = name
        return self

    def define(
        self,
        name: str,
        type: ConfigType,
        default: Any = NO_DEFAULT,
        importance: Importance = MEDIUM,
        doc: str = "",
        **more: Any,
    ) -> Self:
        """Add a key. ``more`` are further fields of ``ConfigKey``. Raises ConfigError if the key exists."""
        more = {"group": self._group, **more}
        key = ConfigKey(name=name, type=type, default=default, importance=importance, doc=doc, **more)
        if name in self.keys:
            raise ConfigError(f"Configuration {name} is defined twice.")
        if key.group is not None and key.order < 0:
            key = replace(key, order=1 + sum(other.group == key.group for other in self.keys.values()))
        if not key.required:
            key = replace(key, default=key.parse(key.default))
        self.keys[name] = key
        return self

    def doc(self, text: str) -> Self:
        """Set the documentation of the key that was added last."""
        name, key = next(reversed(self.keys.items()))
        self.keys[name] = replace(key, doc=text)
        return self

    def __add__(self, other: ConfigDef) -> ConfigDef:
        """Return the keys of both definitions. If both define a key, ``other`` wins."""
        return ConfigDef([*self.keys.values(), *other.keys.values()])

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key.group for key in self.keys.values() if key.group is not None))

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the typed values of all keys. Ignores given names that are not keys. Raises ConfigError for the first
        missing or invalid value.
        """
        values = {}
        for name, key in self.keys.items():
            if name not in given and key.required:
                raise ConfigError(f'Missing required configuration "{name}" which has no default value.')
            values[name] = key.parse(given[name]) if name in given else key.default
            key.check(values[name])
        return values

    def validate(self, given: Mapping[str, Any]) -> list[ConfigValue]:
        """Return every key with its value and its errors. Raises nothing: all problems are in the result."""
        found = {name: self._judge(key, given) for name, key in self.keys.items()}
        values = {name: one.value for name, one in found.items()}
        for name, key in self.keys.items():
            if key.recommender is not None:
                found[name].recommended = list(key.recommender(name, values))
            if key.is_visible is not None:
                found[name].visible = key.is_visible(name, values)
        return list(found.values())

    def _judge(self, key: ConfigKey, given: Mapping[str, Any]) -> ConfigValue:
        judged = ConfigValue(key.name)
        if key.name not in given and key.required:
            judged.errors.append(f'Missing required configuration "{key.name}" which has no default value.')
            return judged
        try:
            judged.value = key.parse(given[key.name]) if key.name in given else key.default
            key.check(judged.value)
        except ConfigError as error:
            judged.errors += error.messages
        return judged

    def infos(self, name: str, values: Iterable[ConfigValue]) -> ConfigInfos:
        """Return the results of ``validate``, to which a connector may have added, as the response to the client.
        ``name`` is the name of the validated class.
        """
        return ConfigInfos(name, self.groups, tuple(ConfigInfo(self.keys.get(one.name), one) for one in values))


# ---- values ---------------------------------------------------------------------------------------------------------


def as_text(value: Any) -> str | None:
    """Return a typed value as it would be written in a properties file; None for None. A secret stays hidden."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ",".join(str(one) for one in value)
        case type():
            return f"{value.__module__}.{value.__qualname__}"
        case _:
            return str(value)


def _boolean(name: str, given: Any) -> bool:
    if isinstance(given, bool):
        return given
    text = str(given).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"Invalid value {given} for configuration {name}: Expected value to be either true or false")
    return text == "true"


def _integer(bits: int, kind: str) -> Callable[[str, Any], int]:
    limit = 1 << (bits - 1)

    def parse(name: str, given: Any) -> int:
        text = str(given).strip()
        if isinstance(given, bool) or not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not -limit <= int(text) < limit:
            raise ConfigError(f"Invalid value {given} for configuration {name}: Not a number of type {kind}")
        return int(text)

    return parse


def _double(name: str, given: Any) -> float:
    try:
        return float(str(given).strip())
    except ValueError:
        raise ConfigError(f"Invalid value {given} for configuration {name}: Not a number of type DOUBLE") from None


def _text(name: str, given: Any) -> str:
    if isinstance(given, str):
        return given.strip()
    if isinstance(given, bool | int | float):
        return str(as_text(given))
    raise ConfigError(
        f"Invalid value {given} for configuration {name}: Expected value to be a string, but it was a "
        f"{type(given).__name__}"
    )


def _list(name: str, given: Any) -> list[str]:
    if isinstance(given, list | tuple):
        return [str(one) for one in given]
    text = _text(name, given)
    return [one.strip() for one in text.split(",")] if text else []


def _class(name: str, given: Any) -> str:
    return str(as_text(given)) if isinstance(given, type) else _text(name, given)


def _password(name: str, given: Any) -> Password:
    return given if isinstance(given, Password) else Password(_text(name, given))


_PARSERS: Final[Mapping[ConfigType, Callable[[str, Any], Any]]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: _text,
    ConfigType.INT: _integer(32, "INT"),
    ConfigType.SHORT: _integer(16, "SHORT"),
    ConfigType.LONG: _integer(64, "LONG"),
    ConfigType.DOUBLE: _double,
    ConfigType.LIST: _list,
    ConfigType.CLASS: _class,
    ConfigType.PASSWORD: _password,
}


# ---- validators -----------------------------------------------------------------------------------------------------


def at_least(low: float) -> Validator:
    """Return a validator that accepts numbers that are not smaller than ``low``."""
    return between(low, None)


def between(low: float, high: float | None) -> Validator:
    """Return a validator that accepts numbers from ``low`` to ``high``, inclusive. None means that there is no upper
    limit.
    """

    def check(name: str, value: Any) -> None:
        if value is None:
            raise ConfigError(f"Invalid value null for configuration {name}: Value must be non-null")
        if value < low:
            raise ConfigError(f"Invalid value {value} for configuration {name}: Value must be at least {low}")
        if high is not None and value > high:
            raise ConfigError(f"Invalid value {value} for configuration {name}: Value must be no more than {high}")

    return check


def one_of(*allowed: Any, ignore_case: bool = False) -> Validator:
    """Return a validator that accepts these values, and lists of them."""
    folded = {str(one).lower() for one in allowed}
    choices = ", ".join(str(one) for one in allowed)
    must = f"one of (case insensitive): {choices.upper()}" if ignore_case else f"one of: {choices}"

    def check(name: str, value: Any) -> None:
        for one in value if isinstance(value, list) else [value]:
            if one not in allowed and not (ignore_case and str(one).lower() in folded):
                raise ConfigError(f"Invalid value {one} for configuration {name}: String must be {must}")

    return check


def non_empty(name: str, value: Any) -> None:
    """Raise ConfigError if a text or a list is empty. None is allowed. This is a validator."""
    if value is not None and not value:
        raise ConfigError(f"Invalid value {as_text(value)} for configuration {name}: {_kind(value)} must be non-empty")


def _kind(value: Any) -> str:
    return "List" if isinstance(value, list) else "String"


def printable(name: str, value: Any) -> None:
    """Raise ConfigError if a text is empty or has control characters. None is allowed. This is a validator."""
    if value is not None and not value:
        raise ConfigError(f"Invalid value {value} for configuration {name}: String may not be empty")
    control = [str(ord(one)) for one in value or "" if ord(one) < 32 or ord(one) == 127]
    if control:
        raise ConfigError(
            f"Invalid value {value} for configuration {name}: String may not contain control sequences but had the "
            f"following ASCII chars: {', '.join(control)}"
        )


def distinct(name: str, value: Any) -> None:
    """Raise ConfigError if a list has equal or empty elements. This is a validator."""
    if any(not one for one in value):
        raise ConfigError(f"Configuration '{name}' values must not be empty.")
    if len(set(value)) != len(value):
        raise ConfigError(f"Configuration '{name}' values must not be duplicated.")
