"""The notation of configuration keys. Each key is defined once, as an attribute of a class that lists keys.

    class LogKeys(Keys):
        log_roll_ms = long("log.roll.ms", None, "How old ...", at_least=1, unit="ms", dynamic=CLUSTER_WIDE)

The name with underscores for dots is the attribute: ``config.log_roll_ms`` is the parsed value (``int | None`` to a
type checker, a plain entry of the instance's ``__dict__`` at run time), ``LogKeys.log_roll_ms`` is the ``Key``.
Parsing, the response to DescribeConfigs, the documentation page, and what can be changed at run time are derived from
the definition. Values are parsed as in Kafka's ``ConfigDef``: surrounding blanks are ignored, booleans are not
case-sensitive, commas separate the elements of a list, and numbers have Java's ranges. NaN and infinity,
which Java allows, are rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from parley.broker.config.errors import Problem, UnknownKey

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    class Facts(TypedDict, total=False):
        """The optional properties of a key, in addition to its name, default and documentation. See ``Key``."""

        unit: str
        at_least: float
        at_most: float
        special_values: tuple[float, ...]
        allowed: tuple[str, ...]
        check: Callable[[str], bool]
        form: str
        dynamic: Dynamic
        importance: Importance
        since: str
        ignored: str
        deprecated: str
        or_else: tuple[tuple[str, int], ...]
        server: str


T_co = TypeVar("T_co", covariant=True)


class ConfigType(IntEnum):
    """The types of values, with their numbers in the DescribeConfigs API (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Dynamic(Enum):
    """Whether a key can be changed while brokers run, and for one broker or for all (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Importance(Enum):
    """How likely it is that an operator needs the key."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


READ_ONLY, PER_BROKER, CLUSTER_WIDE = Dynamic
HIGH, MEDIUM, LOW = Importance

MISSPELLED_MAX = 100
"""The maximum length of an unknown name for which Parley suggests a similar name. The longest known names have about 60
characters."""

SUGGESTIONS_MAX = 3
"""The maximum number of unknown keys of a resource for which Parley suggests similar names. Each search takes about
half a millisecond."""

MAX_INT = (1 << 31) - 1
MAX_LONG = (1 << 63) - 1
MAX_DOUBLE = 1.7976931348623157e308


class Password:
    """A secret. It prints as ``[hidden]``; only ``value`` reveals it."""

    __slots__ = ("value",)

    HIDDEN: ClassVar[str] = "[hidden]"

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return self.HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


class Key(Generic[T_co]):
    """The definition of one key. Immutable."""

    unit: str = ""
    """The unit of a number: ms, bytes, bytes/s, ..."""
    at_least: float | None = None
    at_most: float | None = None
    special_values: tuple[float, ...] = ()
    """Numbers outside the range that are also allowed."""
    allowed: tuple[str, ...] = ()
    """The allowed strings (for a list: elements); empty if any string is allowed."""
    check: Callable[[str], bool] | None = None
    """Checks a string (for a list: each element) if ``allowed`` cannot express the condition."""
    form: str = ""
    """Describes the strings that ``check`` accepts, for error messages."""
    dynamic: Dynamic = READ_ONLY
    importance: Importance = MEDIUM
    since: str = "0.9 or before"
    """The version of Kafka that introduced the key, and its KIP; empty for Parley's own keys."""
    ignored: str = ""
    """Why the key has no effect in Parley; empty if it has one."""
    deprecated: str = ""
    """What to use instead; empty if the key is not deprecated."""
    or_else: tuple[tuple[str, int], ...] = ()
    """Keys that supply the value if this key is not set, in order of precedence, with the factor between the units."""
    server: str = ""
    """The broker's key that contains the default, if this is a key of topics or groups."""

    def __init__(self, type_: ConfigType, name: str, default: T_co, doc: str, facts: Facts) -> None:
        self.type = type_
        self.name = name
        self.default = default
        self.doc = doc
        self.__dict__.update(facts)

    @overload
    def __get__(self, config: None, owner: type) -> Key[T_co]: ...
    @overload
    def __get__(self, config: object, owner: type) -> T_co: ...
    def __get__(self, config: object | None, owner: type) -> Key[T_co] | T_co:
        # A value in the instance's __dict__ takes precedence over this descriptor, which has no __set__.
        return self if config is None else self.default

    def __repr__(self) -> str:
        return f"<key {self.name}>"

    @property
    def attribute(self) -> str:
        """The name of the key as a Python attribute."""
        return self.name.replace(".", "_")

    @property
    def is_sensitive(self) -> bool:
        """True if the value is a secret, which no log line and no response may contain."""
        return self.type is ConfigType.PASSWORD

    @property
    def allowed_text(self) -> str:
        """A description of the allowed values, for error messages."""
        if self.form:
            return self.form
        if self.allowed:
            one_of = ", ".join(self.allowed)
            return f"a comma-separated list of {one_of}" if self.type is ConfigType.LIST else f"one of {one_of}"
        return self._range_text(_NOUNS[self.type])

    def _range_text(self, noun: str) -> str:
        low, high = self.at_least, self.at_most
        match low is not None, high is not None:
            case True, True:
                text = f"{noun} from {low} to {high}"
            case True, False:
                text = f"{noun} of at least {low}"
            case False, True:
                text = f"{noun} of at most {high}"
            case _:
                text = noun
        return text + "".join(f", or {value}" for value in self.special_values)

    def parse(self, text: str) -> T_co:
        """Parse a string. Raises Problem, which names the key and the allowed values."""
        value = _PARSERS[self.type](text.strip())
        if value is None or not self._fits(value):
            raise Problem(self.name, Password.HIDDEN if self.is_sensitive else text, self.allowed_text)
        parsed: T_co = value
        return parsed

    def _fits(self, value: Any) -> bool:
        match value:
            case bool():
                return True
            case int() | float():
                return value in self.special_values or (
                    (self.at_least is None or value >= self.at_least)
                    and (self.at_most is None or value <= self.at_most)
                )
            case tuple():
                return all(map(self._fits_text, value))
            case str():
                return self._fits_text(value)
        return True

    def _fits_text(self, text: str) -> bool:
        return (not self.allowed or text in self.allowed) and (self.check is None or self.check(text))

    def text(self, value: Any) -> str | None:
        """Return the text of a value as Kafka's tools show it, or None if it is unset or a secret."""
        return None if value is None or self.is_sensitive else value_text(value)


def value_text(value: Any) -> str:
    """Return the text of a parsed value as in a properties file, with doubles in Java's notation."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return java_double(value)
        case tuple():
            return ",".join(value)
    return str(value)


def java_double(value: float) -> str:
    """Return a double as Java's ``Double.toString`` prints it: ``0.5``, ``1.7976931348623157E308``."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    mantissa, _, exponent = f"{value:.17e}".partition("e")
    for digits in range(1, 18):
        short = f"{value:.{digits}e}"
        if float(short) == value:
            mantissa, _, exponent = short.partition("e")
            break
    return f"{mantissa}E{int(exponent)}"


# --- Parsing ---


_NOUNS: Mapping[ConfigType, str] = {
    ConfigType.SHORT: "a whole number",
    ConfigType.INT: "a whole number",
    ConfigType.LONG: "a whole number",
    ConfigType.DOUBLE: "a number",
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a text",
    ConfigType.LIST: "a comma-separated list",
    ConfigType.CLASS: "the name of a class",
    ConfigType.PASSWORD: "a secret",
}


def _parse_boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _whole_number(bits: int) -> Callable[[str], int | None]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def parse(text: str) -> int | None:
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdigit()):
            return None
        value = int(text) if len(digits) <= 20 else None
        return value if value is not None and low <= value <= high else None

    return parse


def _parse_double(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and text.isascii() and "_" not in text else None


def split_list(text: str) -> tuple[str, ...]:
    """Split the text of a LIST at its commas, and strip each element. A blank text has no elements."""
    return tuple(element.strip() for element in text.split(",")) if text.strip() else ()


_PARSERS: Mapping[ConfigType, Callable[[str], Any]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.SHORT: _whole_number(16),
    ConfigType.INT: _whole_number(32),
    ConfigType.LONG: _whole_number(64),
    ConfigType.DOUBLE: _parse_double,
    ConfigType.STRING: str,
    ConfigType.CLASS: str,
    ConfigType.LIST: split_list,
    ConfigType.PASSWORD: Password,
}


# --- The notation ---


def boolean(name: str, default: bool, doc: str, **facts: Unpack[Facts]) -> Key[bool]:
    """Define a key whose value is ``true`` or ``false``."""
    return Key(ConfigType.BOOLEAN, name, default, doc, facts)


@overload
def integer(name: str, default: int, doc: str, **facts: Unpack[Facts]) -> Key[int]: ...
@overload
def integer(name: str, default: None, doc: str, **facts: Unpack[Facts]) -> Key[int | None]: ...
def integer(name: str, default: int | None, doc: str, **facts: Unpack[Facts]) -> Key[int] | Key[int | None]:
    """Define a key whose value is a 32-bit integer."""
    return Key(ConfigType.INT, name, default, doc, facts)


def short(name: str, default: int, doc: str, **facts: Unpack[Facts]) -> Key[int]:
    """Define a key whose value is a 16-bit integer."""
    return Key(ConfigType.SHORT, name, default, doc, facts)


@overload
def long(name: str, default: int, doc: str, **facts: Unpack[Facts]) -> Key[int]: ...
@overload
def long(name: str, default: None, doc: str, **facts: Unpack[Facts]) -> Key[int | None]: ...
def long(name: str, default: int | None, doc: str, **facts: Unpack[Facts]) -> Key[int] | Key[int | None]:
    """Define a key whose value is a 64-bit integer."""
    return Key(ConfigType.LONG, name, default, doc, facts)


def duration(name: str, doc: str, **facts: Unpack[Facts]) -> Key[int]:
    """Define a key whose value is a number of milliseconds. The keys in ``or_else`` supply it if it is not set."""
    unset: Any = None
    return Key(ConfigType.LONG, name, unset, doc, facts)


def double(name: str, default: float, doc: str, **facts: Unpack[Facts]) -> Key[float]:
    """Define a key whose value is a floating-point number."""
    return Key(ConfigType.DOUBLE, name, default, doc, facts)


@overload
def string(name: str, default: str, doc: str, **facts: Unpack[Facts]) -> Key[str]: ...
@overload
def string(name: str, default: None, doc: str, **facts: Unpack[Facts]) -> Key[str | None]: ...
def string(name: str, default: str | None, doc: str, **facts: Unpack[Facts]) -> Key[str] | Key[str | None]:
    """Define a key whose value is a string."""
    return Key(ConfigType.STRING, name, default, doc, facts)


@overload
def strings(name: str, default: tuple[str, ...], doc: str, **facts: Unpack[Facts]) -> Key[tuple[str, ...]]: ...
@overload
def strings(name: str, default: None, doc: str, **facts: Unpack[Facts]) -> Key[tuple[str, ...] | None]: ...
def strings(
    name: str, default: tuple[str, ...] | None, doc: str, **facts: Unpack[Facts]
) -> Key[tuple[str, ...]] | Key[tuple[str, ...] | None]:
    """Define a key whose value is a list of strings, separated by commas."""
    return Key(ConfigType.LIST, name, default, doc, facts)


def password(name: str, doc: str, **facts: Unpack[Facts]) -> Key[Password | None]:
    """Define a key whose value is a secret. It has no default."""
    return Key(ConfigType.PASSWORD, name, None, doc, facts)


def class_name(name: str, doc: str, **facts: Unpack[Facts]) -> Key[str | None]:
    """Define a key whose value is a class supplied by the operator, as ``package.module.Class``. It has no default."""
    return Key(ConfigType.CLASS, name, None, doc, facts)


class Keys:
    """Base class of lists of keys. A subclass can combine several lists. ``KEYS`` contains all their keys by name."""

    KEYS: ClassVar[Mapping[str, Key[Any]]] = {}
    TITLE: ClassVar[str] = ""
    """The heading of the list in the documentation."""

    def __init_subclass__(cls, *, title: str = "") -> None:
        super().__init_subclass__()
        cls.TITLE = title
        keys: dict[str, Key[Any]] = {}
        for base in cls.__bases__:
            keys.update(getattr(base, "KEYS", {}))
        for attribute, key in vars(cls).items():
            if isinstance(key, Key):
                assert key.attribute == attribute, f"{key.name} is defined as {attribute}"
                assert key.name not in keys, f"{key.name} is defined twice"
                keys[key.name] = key
        cls.KEYS = keys


def parse_all(keys: Mapping[str, Key[Any]], given: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    """Parse the entries in ``given`` whose names are in ``keys``, and ignore all others.

    Returns the valid values by attribute name, and a problem for each invalid one.
    """
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, text in given.items():
        key = keys.get(name)
        if key is None:
            continue
        try:
            values[key.attribute] = key.parse(text)
        except Problem as problem:
            problems.append(problem)
    return values, problems


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the element of ``names`` that is most similar to the unknown ``name``.

    Returns None if no element is similar, or if ``name`` is longer than ``MISSPELLED_MAX``.
    """
    from difflib import get_close_matches  # needed for error messages only

    if len(name) > MISSPELLED_MAX:
        return None
    return next(iter(get_close_matches(name, list(names), n=1, cutoff=0.75)), None)


def unknown_keys(given: Mapping[str, str], known: Mapping[str, Key[Any]]) -> list[Problem]:
    """Return a problem for each name in ``given`` that is not in ``known``.

    The first ``SUGGESTIONS_MAX`` problems suggest a known name, if one is similar.
    """
    unknown = [(name, text) for name, text in given.items() if name not in known]
    return [
        UnknownKey(name, text, closest(name, known) if number < SUGGESTIONS_MAX else None)
        for number, (name, text) in enumerate(unknown)
    ]
