"""The notation in which every message is defined, and the base classes of message objects.

A message is a class; its annotations are its fields, in wire order::

    class ProduceRequest(Request, key=0, versions="3-13", flexible="9+"):
        transactional_id: str | None = field("3+", nullable="3+", default=None)
        acks: i16

docs/contributing.md, "The notation of messages", has the rules. In its ``flexible`` versions, a message has compact
strings and arrays, and tagged fields (KIP-482): ``encoding.py`` and ``decoding.py`` write and read them. Importing
hundreds of classes must be cheap, so annotations are resolved, and constructors and codecs are generated, at their
first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    TypeAlias,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    overload,
)

from parley.protocol.uuids import UUID
from parley.protocol.version_range import VersionRange

__all__ = [
    "ZERO",
    "ZERO_UUID",
    "Buffer",
    "Data",
    "Field",
    "Header",
    "Message",
    "Records",
    "Request",
    "Response",
    "Struct",
    "VersionRange",
    "f64",
    "field",
    "i8",
    "i16",
    "i32",
    "i64",
    "u16",
    "u32",
]

T = TypeVar("T")

i8: TypeAlias = Annotated[int, "i8"]
i16: TypeAlias = Annotated[int, "i16"]
i32: TypeAlias = Annotated[int, "i32"]
i64: TypeAlias = Annotated[int, "i64"]
u16: TypeAlias = Annotated[int, "u16"]
u32: TypeAlias = Annotated[int, "u32"]
f64: TypeAlias = Annotated[float, "f64"]

Buffer: TypeAlias = bytes | bytearray | memoryview  # the items of a memoryview must be single bytes

# Record batches, which are not parsed: decoded as a slice of the frame (no copy), encoded by reference. A sequence of
# buffers stands for their concatenation.
Records: TypeAlias = Annotated[Buffer | Sequence[Buffer] | None, "records"]

ZERO_UUID: Final = UUID(int=0)

# As a default: the zero of the field's type. For structs whose class does not exist yet when the field is declared.
ZERO: Final[Any] = object()

_MISSING: Final = object()
_API_VERSIONS_KEY: Final = 18


_versions: Final = cache(VersionRange)
"""Returns the range that a string such as "3+" describes. Cached: thousands of fields share about sixty ranges."""
_ALL: Final = _versions("0+")
_NONE: Final = _versions("none")


class FieldType:
    """A resolved type.

    ``kind`` is "i8", "i16", "i32", "i64", "u16", "u32", "f64", "bool", "str", "uuid", "bytes", "records", "array" of
    ``element``, or "struct" of class ``struct``.
    """

    __slots__ = ("element", "kind", "struct")

    def __init__(self, kind: str, element: FieldType | None = None, struct: type[Struct] | None = None) -> None:
        self.kind = kind
        self.element = element
        self.struct = struct

    def zero(self) -> Any:
        """Return the default of a field of this type that does not declare one. A list is a new object each time."""
        if self.kind == "array":
            return []
        if self.struct is not None:
            return self.struct.blank().frozen()
        return _ZEROS[self.kind]


_ZEROS: Final[dict[str, Any]] = {
    **dict.fromkeys(("i8", "i16", "i32", "i64", "u16", "u32"), 0),
    "f64": 0.0,
    "bool": False,
    "str": "",
    "uuid": ZERO_UUID,
    "bytes": b"",
    "records": None,
}


class Field:
    """The properties of one field. ``type``, ``nullable`` and ``default()`` are valid once the class is resolved."""

    __slots__ = (
        "_declared_default",
        "_declared_nullable",
        "_default",
        "compact",
        "ignorable",
        "name",
        "nullable",
        "tag",
        "tagged",
        "type",
        "versions",
    )

    def __init__(
        self,
        versions: str = "0+",
        *,
        default: Any = _MISSING,
        nullable: str | None = None,
        tag: int | None = None,
        tagged: str = "none",
        ignorable: bool = False,
        flexible: str = "0+",
    ) -> None:
        if (tag is None) != (tagged == "none"):
            raise TypeError("a tagged field needs both tag= and tagged=")
        if flexible not in ("0+", "none"):
            raise TypeError("flexible= of a field is 'none' or left out")
        self.name = ""
        self.versions = _versions(versions)
        self.tag = tag
        self.tagged = _versions(tagged)
        self.ignorable = ignorable
        self.compact = flexible != "none"
        self._declared_default = default
        self._declared_nullable = nullable
        self._default: Any = None
        self.type: FieldType = FieldType("unresolved")
        self.nullable: VersionRange = _NONE

    @property
    def required(self) -> bool:
        """True if the constructor requires a value for the field."""
        return self._declared_default is _MISSING

    def default(self) -> Any:
        """Return the default value. A list is a new object each time; a struct is always the same frozen object."""
        default = self._default
        return list(default) if isinstance(default, list) else default

    def resolve(self, annotation: Any, namespace: dict[str, Any]) -> None:
        """Set ``type``, ``nullable`` and the default from the annotation. Raises TypeError if the annotation is not
        valid or contradicts the declaration."""
        evaluated = eval(annotation, namespace) if isinstance(annotation, str) else annotation
        self.type, optional = _field_type(evaluated)
        if self._declared_nullable is not None:
            self.nullable = _versions(self._declared_nullable)
            if not optional:
                raise TypeError(f"field {self.name} is nullable, but its annotation does not include None")
        else:
            self.nullable = _ALL if optional else _NONE
        declared = self._declared_default
        default = self.type.zero() if declared is _MISSING or declared is ZERO else declared
        self._default = default.frozen() if isinstance(default, Struct) else default


_KINDS: Final[dict[Any, str]] = {bool: "bool", str: "str", UUID: "uuid", bytes: "bytes"}


def _field_type(annotation: Any) -> tuple[FieldType, bool]:
    """Return the type that an annotation declares, and whether it allows None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        kind = annotation.__metadata__[0]
        return FieldType(kind), kind == "records"
    if origin is list:
        return FieldType("array", element=_field_type(get_args(annotation)[0])[0]), False
    if origin in (Union, UnionType):
        given = [option for option in get_args(annotation) if option is not NoneType]
        if len(given) != 1:
            raise TypeError(f"a field must have one type, or one type and None: {annotation}")
        return _field_type(given[0])[0], True
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return FieldType("struct", struct=annotation), False
    if annotation in _KINDS:
        return FieldType(_KINDS[annotation]), False
    raise TypeError(f"no wire type for {annotation!r}")


@overload
def field(
    versions: str = ...,
    *,
    default: T,
    nullable: str | None = ...,
    tag: int | None = ...,
    tagged: str = ...,
    ignorable: bool = ...,
    flexible: str = ...,
) -> T: ...
@overload
def field(
    versions: str = ...,
    *,
    nullable: str | None = ...,
    tag: int | None = ...,
    tagged: str = ...,
    ignorable: bool = ...,
    flexible: str = ...,
) -> Any: ...
def field(
    versions: str = "0+",
    *,
    default: Any = _MISSING,
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str = "none",
    ignorable: bool = False,
    flexible: str = "0+",
) -> Any:
    """Declare the properties of a field other than its type.

    ``versions`` are the versions that contain it; ``nullable`` are those in which it may be null; ``tag`` is its tag,
    and ``tagged`` are the versions in which it is a tagged field. The value of an ``ignorable`` field is silently
    dropped in versions that lack the field. ``flexible="none"`` keeps the old, non-compact encoding even in flexible
    versions.
    """
    return Field(
        versions, default=default, nullable=nullable, tag=tag, tagged=tagged, ignorable=ignorable, flexible=flexible
    )


SECRET_FIELDS = frozenset({"auth_bytes", "hmac", "salted_password"})
"""The fields with the secrets of logins, SCRAM users and delegation tokens, which ``repr`` hides."""
HIDDEN = "[hidden]"


@dataclass_transform(kw_only_default=True, eq_default=True, field_specifiers=(field, Field))
class _StructType(type):
    """Turns the annotations of a class into its slots and keeps their ``Field`` objects."""

    _declared: dict[str, Field]
    _annotations: dict[str, Any]
    _outer: _StructType | None
    _plain: _StructType  # this class; for a frozen class, the class whose objects it freezes
    _resolved: tuple[Field, ...] | None

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> _StructType:
        annotations: dict[str, Any] = namespace.get("__annotations__", {})
        declared: dict[str, Field] = {}
        if bases:
            for attribute, annotation in annotations.items():
                if isinstance(annotation, str) and annotation.startswith("ClassVar"):
                    continue
                value = namespace.pop(attribute, _MISSING)
                declared[attribute] = this = value if isinstance(value, Field) else Field(default=value)
                this.name = attribute
        else:  # Struct itself, whose only slot is inherited by every class
            namespace.pop("unknown_tags")
        namespace["__slots__"] = tuple(declared) if bases else ("unknown_tags",)
        cls = super().__new__(mcs, name, bases, namespace, **kwargs)
        cls._declared = declared
        cls._annotations = annotations
        cls._outer = None
        cls._plain = cls
        cls._resolved = None
        for inner in namespace.values():
            if isinstance(inner, _StructType) and inner.__qualname__.startswith(f"{cls.__qualname__}."):
                inner._outer = cls
        return cls

    def _names(cls) -> dict[str, Any]:
        """Return the names that an annotation may use: those of the module, and the enclosing and nested classes."""
        names = dict(vars(sys.modules[cls.__module__]))
        around: list[_StructType] = []
        scope: _StructType | None = cls
        while scope is not None:
            around.append(scope)
            scope = scope._outer
        for scope in reversed(around):
            names[scope.__name__] = scope
            names.update({key: value for key, value in vars(scope).items() if isinstance(value, _StructType)})
        return names


class Struct(metaclass=_StructType):
    """A part of a message. Fields are keyword-only; two structs are equal if all fields are equal."""

    ENCODED_AHEAD: ClassVar[bool] = False
    """True if an array of this struct may be passed as an ``EncodedArray``."""
    unknown_tags: tuple[tuple[int, bytes], ...] = ()

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        cls.__init__ = _make_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    @classmethod
    def fields(cls) -> tuple[Field, ...]:
        """Return all fields in wire order, resolved."""
        resolved = cls._resolved
        if resolved is None:
            names = cls._names()
            for name, declared in cls._declared.items():
                declared.resolve(cls._annotations[name], names)
            resolved = cls._resolved = tuple(cls._declared.values())
        return resolved

    @classmethod
    def blank(cls: type[S]) -> S:
        """Return an instance with every field at its default, including required fields."""
        return cls(**{declared.name: declared.default() for declared in cls.fields()})

    def copy(self: S) -> S:
        """Return a copy with copies of its lists and structs. Buffers are shared. The copy of a frozen object can be
        modified."""
        plain: type[S] = type(self)._plain  # type: ignore[assignment]
        twin = plain.__new__(plain)
        for name in plain._declared:
            setattr(twin, name, _copied(getattr(self, name)))
        twin.unknown_tags = self.unknown_tags
        return twin

    def frozen(self: S) -> S:
        """Return an equal object that raises AttributeError if an attribute is set. Lists and structs are shared, not
        frozen."""
        cls = _frozen_class(type(self))
        twin: S = object.__new__(cls)
        for name in (*type(self)._declared, "unknown_tags"):
            object.__setattr__(twin, name, getattr(self, name))
        return twin

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or type(other)._plain is not type(self)._plain:
            return NotImplemented
        return self.unknown_tags == other.unknown_tags and all(
            getattr(self, name) == getattr(other, name) for name in type(self)._declared
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        shown = [
            f"{name}={HIDDEN if name in SECRET_FIELDS else repr(getattr(self, name))}" for name in type(self)._declared
        ]
        if self.unknown_tags:
            shown.append(f"unknown_tags={self.unknown_tags!r}")
        return f"{type(self).__qualname__}({', '.join(shown)})"


S = TypeVar("S", bound=Struct)


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value.copy() if isinstance(value, Struct) else value


@cache
def _frozen_class(cls: type[Any]) -> type[Any]:
    """Return the subclass of ``cls`` to which ``Struct.frozen`` converts its objects."""
    if cls._plain is not cls:
        return cls

    def refuse(self: Struct, name: str, value: object) -> None:
        raise AttributeError(f"this {cls.__qualname__} is a field's default: assign a new one instead of modifying it")

    frozen = _StructType(
        cls.__name__, (cls,), {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__setattr__": refuse}
    )
    frozen._declared, frozen._annotations, frozen._plain = cls._declared, cls._annotations, cls
    frozen._resolved = cls.fields()
    return frozen


def constructor(cls: type[S]) -> type[S]:
    """Return a function that creates objects of the class, like a call of the class but in half the time.

    Python passes keyword arguments to a class in a dictionary, and to a function without one.
    """
    scope: dict[str, Any] = {"_class": cls, "_new": object.__new__}
    function: Any = _generated("constructor(*, ", cls, ["    self = _new(_class)"], ["    return self"], scope)
    made: type[S] = function
    return made


def _make_init(cls: type[Struct]) -> Callable[..., None]:
    init: Callable[..., None] = _generated("__init__(self, *, ", cls, [], [], {})
    return init


def _generated(head: str, cls: type[Struct], before: list[str], after: list[str], scope: dict[str, Any]) -> Any:
    """Generate a function that sets each field of ``self`` to the value of its keyword-only parameter."""
    scope["_fresh"] = _MISSING
    parameters, body = [], list(before)
    for declared in cls.fields():
        name = declared.name
        if declared.required:
            parameters.append(name)
            body.append(f"    self.{name} = {name}")
            continue
        default = declared.default()
        if isinstance(default, list):
            parameters.append(f"{name}=_fresh")
            body.append(f"    self.{name} = {default!r} if {name} is _fresh else {name}")
        else:
            scope[f"_default_{name}"] = default
            parameters.append(f"{name}=_default_{name}")
            body.append(f"    self.{name} = {name}")
    source = [f"def {head}{', '.join([*parameters, 'unknown_tags=()'])}):", *body]
    exec("\n".join([*source, "    self.unknown_tags = unknown_tags", *after]), scope)
    made = scope[head.partition("(")[0]]
    made.__qualname__ = f"{cls.__qualname__}.{made.__name__}"
    return made


class Message(Struct):
    """A whole message, with its versions and its flexible versions (KIP-482)."""

    VERSIONS: ClassVar[VersionRange] = _NONE
    FLEXIBLE: ClassVar[VersionRange] = _NONE

    def __init_subclass__(cls, *, versions: str = "none", flexible: str = "none", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.VERSIONS = _versions(versions)
        cls.FLEXIBLE = _versions(flexible)

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Return True if this version has compact lengths and tagged fields."""
        return version in cls.FLEXIBLE


class Header(Message):
    """The header of a message in a frame."""


class Data(Message):
    """A message that is neither a request nor a response: a stored record's key or value, or an embedded payload."""


class _ApiMessage(Message):
    API_KEY: ClassVar[int] = -1

    def __init_subclass__(cls, *, key: int = -1, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.API_KEY = key


class Request(_ApiMessage):
    """A request to a broker."""

    @classmethod
    def header_version(cls, version: int) -> int:
        """Return the version of the header for this version of the request."""
        return 2 if version in cls.FLEXIBLE else 1


class Response(_ApiMessage):
    """A response from a broker."""

    @classmethod
    def header_version(cls, version: int) -> int:
        """Return the version of the header for this version of the response.

        Always 0 for ApiVersions, because its reader does not know the broker's versions yet (KIP-511).
        """
        return 1 if version in cls.FLEXIBLE and cls.API_KEY != _API_VERSIONS_KEY else 0
