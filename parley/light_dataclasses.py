"""``dataclass``: like ``dataclasses.dataclass(slots=True)``, but each method is generated when it is first called.

A broker defines about 265 dataclasses while it starts. The standard library compiles up to six methods for each, which
took 38% of the instructions of startup. Startup uses few of these methods. A constructor of a frozen class also takes
less time: it stores values through the slots' descriptors, and does not look up each name in ``object.__setattr__``.

The standard library still collects the fields, so ``replace``, ``fields``, ``asdict`` and pattern matching work. Two
differences remain: ``inspect.signature`` sees the constructor only after its first call, and no attribute of a frozen
object can be set, not even one that a subclass without the decorator defines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from reprlib import recursive_repr
from threading import RLock
from typing import Any, Final, Literal, TypeVar, dataclass_transform

T = TypeVar("T")
_MISSING: Final = dataclasses.MISSING
_NO_FIELD: Final = ("ClassVar", "typing.ClassVar")
"""The prefixes of the type annotations of class attributes that are not fields."""
_COLLECTED: Final = ("__dataclass_fields__", "__match_args__")
_collecting: Final = RLock()
"""Held while the fields of a class and its bases are collected. Collecting the fields of a class removes its defaults,
so it must happen only once."""
_Source = Callable[[type[Any]], tuple[str, dict[str, object]]]
"""Returns the source of a method, and the values of the names that the source uses."""


@dataclass_transform(field_specifiers=(dataclasses.field, dataclasses.Field))
def dataclass(
    *, slots: Literal[True], frozen: bool = False, eq: bool = True, kw_only: bool = False
) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes a class a dataclass with slots. Methods that the class itself defines are kept."""

    def made(written: type[T]) -> type[T]:
        cls = _with_slots(written)
        for name in _COLLECTED:
            setattr(cls, name, _Collected(name, cls, written, kw_only=kw_only))
        own = cls.__dict__
        has_hash = own.get("__hash__") is not None
        has_eq = "__eq__" in own
        if "__init__" not in own:
            _generate_on_first_call(cls, "__init__", _frozen_init if frozen else _init)
        if "__repr__" not in own:
            cls.__repr__ = _repr  # type: ignore[method-assign]
        if eq and not has_eq:
            _generate_on_first_call(cls, "__eq__", _eq)
        if eq and not has_hash:
            if frozen:
                _generate_on_first_call(cls, "__hash__", _hash)
            else:
                cls.__hash__ = None  # type: ignore[assignment]
        if frozen:
            cls.__setattr__ = _refuse_assignment  # type: ignore[method-assign]
            cls.__delattr__ = _refuse_deletion  # type: ignore[method-assign]
            if "__getstate__" not in own:
                cls.__getstate__ = _state  # type: ignore[method-assign]
            if "__setstate__" not in own:
                cls.__setstate__ = _set_state  # type: ignore[attr-defined]
        return cls

    return made


def _with_slots(written: type[T]) -> type[T]:
    """Return a copy of the class that has a slot for each field."""
    namespace = dict(written.__dict__)
    names = [name for name, type_ in written.__annotations__.items() if not str(type_).startswith(_NO_FIELD)]
    inherited = {slot for base in written.__mro__[1:] for slot in vars(base).get("__slots__", ())}
    for name in (*names, "__dict__", "__weakref__"):
        namespace.pop(name, None)  # a default would hide the slot
    namespace["__slots__"] = tuple(name for name in names if name not in inherited)
    metaclass: Any = type(written)
    cls: type[T] = metaclass(written.__name__, written.__bases__, namespace)
    cls.__qualname__ = written.__qualname__
    return cls


class _Collected:
    """A placeholder for an attribute that the standard library derives from the fields of a class. Replaced when it is
    read."""

    __slots__ = ("_cls", "_kw_only", "_name", "_written")

    def __init__(self, name: str, cls: type[Any], written: type[Any], *, kw_only: bool) -> None:
        self._name, self._cls, self._written, self._kw_only = name, cls, written, kw_only

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        with _collecting:
            if vars(self._cls)[self._name] is self:
                made = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=self._kw_only)(self._written)
                for name in ("__dataclass_params__", *_COLLECTED):
                    setattr(self._cls, name, vars(made)[name])
            return vars(self._cls)[self._name]


def _generate_on_first_call(cls: type[Any], name: str, source: _Source) -> None:
    """Set a method that, when it is first called, replaces itself with the method of the generated ``source``."""

    def first(self: object, *values: object, **named: object) -> Any:
        method = _generated(cls, name, source)
        setattr(cls, name, method)
        return method(self, *values, **named)

    setattr(cls, name, _named(first, cls, name))


def _generated(cls: type[Any], name: str, source: _Source) -> Callable[..., Any]:
    text, scope = source(cls)
    exec(compile(text, f"<{name} of {cls.__module__}.{cls.__qualname__}>", "exec"), scope)
    return _named(scope[name], cls, name)  # type: ignore[arg-type]


def _named(method: Callable[..., Any], cls: type[Any], name: str) -> Callable[..., Any]:
    method.__name__, method.__qualname__, method.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
    return method


def _init(cls: type[Any]) -> tuple[str, dict[str, object]]:
    return _init_with(cls, {}, "self.{0} = {1}")


def _frozen_init(cls: type[Any]) -> tuple[str, dict[str, object]]:
    setters = {f"_set_{field.name}": getattr(cls, field.name).__set__ for field in dataclasses.fields(cls)}
    return _init_with(cls, setters, "_set_{0}(self, {1})")


def _init_with(cls: type[Any], scope: dict[str, object], assignment: str) -> tuple[str, dict[str, object]]:
    """Return the source of a constructor whose statements follow the pattern ``assignment``, and ``scope`` with the
    values of the names that the source uses."""
    scope["_missing"] = _MISSING
    positional, named, body = ["self"], list[str](), list[str]()
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        parameter = name
        if field.default_factory is not _MISSING:
            scope[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_missing"
            value = f"_make_{name}() if {name} is _missing else {name}" if field.init else f"_make_{name}()"
        elif field.default is not _MISSING:
            scope[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
            value = name if field.init else f"_default_{name}"
        elif not field.init:
            continue
        body.append(assignment.format(name, value))
        if field.init:
            (named if field.kw_only else positional).append(parameter)
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *named] if named else [])])
    return "\n    ".join([f"def __init__({parameters}):", *(body or ["pass"])]), scope


def _eq(cls: type[Any]) -> tuple[str, dict[str, object]]:
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    same = f"{_tuple_of('self', names)} == {_tuple_of('other', names)}"
    text = f"def __eq__(self, other):\n    return {same} if other.__class__ is self.__class__ else NotImplemented"
    return text, {}


def _hash(cls: type[Any]) -> tuple[str, dict[str, object]]:
    fields = dataclasses.fields(cls)
    names = [field.name for field in fields if (field.compare if field.hash is None else field.hash)]
    return f"def __hash__(self):\n    return hash({_tuple_of('self', names)})", {}


def _tuple_of(owner: str, names: Sequence[str]) -> str:
    return f"({''.join(f'{owner}.{name}, ' for name in names)})"


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_assignment(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: Sequence[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
