"""Generates the decoder of one version of one message as straight-line Python, and compiles it.

A decoder is a function ``(buf, pos, elements_max, whole) -> (message, pos)``. ``whole`` is the message as it arrived;
``buf`` may be a copy, which is faster to parse. A decoder is fast because adjacent fixed-width fields, with the length
or count that follows, are read by one ``struct.Struct``, structs are decoded in place, and records are slices of
``whole``.

It is safe because a read past the end raises (``struct.error``, IndexError), every length is compared with the bytes
left, and a count is rejected if the bytes left are too few for that many elements of the minimum size. The number of
elements and unknown tags in a message is limited, most strictly in requests, which any client may send. No input causes
recursion. Every failure becomes ``MalformedMessage``.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

from parley.protocol.errors import MalformedMessage, TooManyElements
from parley.protocol.primitives import UUIDS, read_tag, read_tags, rest_of_uvarint
from parley.protocol.schema import Buffer, Field, FieldType, Message, Struct

Decoder: TypeAlias = Callable[[Buffer, int, int, Buffer], tuple[Any, int]]

# Kind of a fixed-width field -> its letter for `struct`, and its width in bytes.
FIXED: Final[dict[str, tuple[str, int]]] = {
    "bool": ("?", 1),
    "i8": ("b", 1),
    "i16": ("h", 2),
    "u16": ("H", 2),
    "i32": ("i", 4),
    "u32": ("I", 4),
    "i64": ("q", 8),
    "f64": ("d", 8),
    "uuid": ("16s", 16),
}
ELEMENTS_MAX: Final = 1 << 21  # of all arrays and tagged sections of a message: a few hundred megabytes of objects
REQUEST_ELEMENTS_MAX: Final = 1 << 16  # the same for a request: 0.1 s to decode, tens of megabytes
# In every version: non-flexible lengths are int16, and compact lengths are held to the same limit.
STRING_BYTES_MAX: Final = 32767


class Source:
    """The lines of a function being generated, and the objects that it refers to by name."""

    def __init__(self, header: str) -> None:
        self._lines = [header]
        self._indent = 1
        self._count = 0
        self._kept: dict[str, Any] = {}
        self._names: dict[Any, str] = {}

    def line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    def open(self, text: str) -> None:
        """Add a line that starts a block."""
        self.line(text)
        self._indent += 1

    def close(self, blocks: int = 1) -> None:
        self._indent -= blocks

    def local(self, stem: str) -> str:
        """Return a new name for a local variable."""
        self._count += 1
        return f"{stem}{self._count}"

    def keep(self, stem: str, value: Any, key: Any = None) -> str:
        """Return the name by which the function refers to ``value``. Equal keys share one name."""
        key = (stem, id(value) if key is None else key)
        if key not in self._names:
            self._names[key] = f"{stem}_{len(self._names)}"
            self._kept[self._names[key]] = value
        return self._names[key]

    def compiled(self, title: str, scope: dict[str, Any]) -> Any:
        """Compile the lines, and return their function, ``run``. ``scope`` contains its global names; ``title`` is the
        file name in tracebacks."""
        text = "\n".join(self._lines) + "\n"
        linecache.cache[title] = (len(text), None, text.splitlines(keepends=True), title)
        made = {**scope, **self._kept}
        exec(compile(text, title, "exec"), made)
        return made["run"]


def present(declared: Field, version: int) -> bool:
    """Return True if this version contains the field in its regular position, not in the tagged section."""
    return version in declared.versions and version not in declared.tagged


def tagged(cls: type[Struct], version: int) -> list[Field]:
    """Return the known tagged fields of this version, sorted by tag."""
    found = [f for f in cls.fields() if f.tag is not None and version in f.tagged and version in f.versions]
    return sorted(found, key=lambda f: f.tag or 0)


def smallest(kind: FieldType, version: int, flexible: bool) -> int:
    """Return the minimum size of an element of this type in bytes. It is never 0, so the bytes left always limit a
    count."""
    if kind.kind in FIXED:
        return FIXED[kind.kind][1]
    if kind.struct is None:
        return 1 if flexible else 2 if kind.kind == "str" else 4
    total = int(flexible)
    for declared in kind.struct.fields():
        if present(declared, version):
            null = version in declared.nullable and declared.type.kind == "struct"
            total += 1 if null else smallest(declared.type, version, flexible and declared.compact)
    return max(total, 1)


def compile_decoder(cls: type[Message], version: int) -> Decoder:
    """Return the decoder of one version of a message."""
    writer = _DecoderWriter(cls, version)
    decoder: Decoder = writer.write()
    return decoder


class _DecoderWriter:
    def __init__(self, cls: type[Message], version: int) -> None:
        self._cls = cls
        self._version = version
        self._flexible = cls.is_flexible(version)
        self._source = Source("def run(buf, pos, left, whole):")
        self._run: list[tuple[str, int, str]] = []  # letter, width, target of the fields that ``_flush`` reads
        self._after: list[str] = []  # the lines to add after that read

    def write(self) -> Any:
        source = self._source
        title = f"{self._cls.__name__} v{self._version}"
        source.line("end = len(buf)")
        source.open("try:")
        message = self._struct(self._cls)
        source.line(f"return {message}, pos")
        source.close()
        source.open("except (struct_error, IndexError):")
        source.line(f"raise MalformedMessage('{title} ends early') from None")
        source.close()
        source.open("except UnicodeDecodeError:")
        source.line(f"raise MalformedMessage('{title} has a string that is not UTF-8') from None")
        return source.compiled(f"<decoder of {title}>", _SCOPE)

    # --- Runs of fixed width ---

    def _fixed(self, letter: str, width: int, target: str, after: str = "") -> None:
        self._run.append((letter, width, target))
        if after:
            self._after.append(after)

    def _flush(self) -> None:
        if not self._run:
            return
        letters = ">" + "".join(letter for letter, _, _ in self._run)
        width = sum(width for _, width, _ in self._run)
        targets = ", ".join(target for _, _, target in self._run)
        if letters == ">B":
            self._source.line(f"{targets} = buf[pos]")
        else:
            unpack = self._source.keep("unpack", struct.Struct(letters).unpack_from, letters)
            self._source.line(f"{targets}{',' if len(self._run) == 1 else ''} = {unpack}(buf, pos)")
        self._source.line(f"pos += {width}")
        for line in self._after:
            self._source.line(line)
        self._run, self._after = [], []

    def _length(self, kind: str, compact: bool) -> str:
        """Read a length or a count. Returns the name of the local variable for it, which is -1 for null."""
        length = self._source.local("n")
        if not compact:
            letter, width = ("h", 2) if kind == "str" else ("i", 4)
            self._fixed(letter, width, length)
            self._flush()
            return length
        self._fixed("B", 1, length)
        self._flush()
        self._source.open(f"if {length} > 127:")
        self._source.line(f"{length}, pos = rest_of_uvarint(buf, pos, {length})")
        self._source.close()
        self._source.line(f"{length} -= 1")
        return length

    # --- Fields ---

    def _struct(self, cls: type[Struct]) -> str:
        """Decode a struct. Returns the name of the local variable for it."""
        source = self._source
        this = source.local("m")
        source.line(f"{this} = new({source.keep(cls.__name__, cls)})")
        for declared in cls.fields():
            if present(declared, self._version):
                self._field(declared, this)
            else:
                self._absent(declared, this)
        if self._flexible:
            self._tags(cls, this)
        else:
            self._flush()
            source.line(f"{this}.unknown_tags = ()")
        return this

    def _absent(self, declared: Field, this: str) -> None:
        default = declared.default()
        if isinstance(default, str | int | float | bytes | list | None):
            value = repr(default)
        else:
            value = self._source.keep("default", default)
        self._after.append(f"{this}.{declared.name} = {value}")
        if not self._run:
            self._source.line(self._after.pop())

    def _field(self, declared: Field, this: str) -> None:
        target = f"{this}.{declared.name}"
        nullable = self._version in declared.nullable
        kind = declared.type
        if kind.kind == "struct" and nullable:
            self._nullable_struct(kind, target, null=0 if self._version in declared.tagged else -1)
        else:
            self._value(kind, target, nullable, self._flexible and declared.compact, declared.name)

    def _nullable_struct(self, kind: FieldType, target: str, *, null: int) -> None:
        there = self._source.local("n")
        self._fixed("b", 1, there)
        self._flush()
        self._source.open(f"if {there} <= {null}:")
        self._source.line(f"{target} = None")
        self._source.close()
        self._source.open("else:")
        assert kind.struct is not None
        self._source.line(f"{target} = {self._struct(kind.struct)}")
        self._source.close()

    def _value(self, kind: FieldType, target: str, nullable: bool, compact: bool, name: str) -> None:
        """Decode one value into ``target``."""
        if kind.kind == "uuid":
            raw = self._source.local("t")
            self._fixed("16s", 16, raw, f"{target} = uuids[{raw}]")
        elif kind.kind in FIXED:
            self._fixed(*FIXED[kind.kind], target)
        elif kind.struct is not None:
            inner = self._struct(kind.struct)
            self._source.line(f"{target} = {inner}")
        else:
            self._sized(kind, target, nullable, compact, name)

    def _sized(self, kind: FieldType, target: str, nullable: bool, compact: bool, name: str) -> None:
        """Decode a value that starts with a length: a string, bytes, records or an array."""
        source = self._source
        length = self._length(kind.kind, compact)
        source.open(f"if {length} < 0:")
        if nullable:
            # A compact length cannot be below -1; a non-compact length can, and is rejected.
            if not compact:
                source.line(f"if {length} != -1: refuse_length({name!r}, {length})")
            source.line(f"{target} = None")
            source.close()
            source.open("else:")
        else:
            source.line(f"refuse_length({name!r}, {length})")
            source.close()
        if kind.element is not None:
            self._array(kind.element, target, length, compact, name)
        else:
            self._bytes(kind.kind, target, length, compact, name)
        source.close(int(nullable))

    def _bytes(self, kind: str, target: str, length: str, compact: bool, name: str) -> None:
        stop = self._source.local("q")
        self._source.line(f"{stop} = pos + {length}")
        too_long = f" or {length} > {STRING_BYTES_MAX}" if kind == "str" and compact else ""
        self._source.line(f"if {stop} > end{too_long}: refuse_length({name!r}, {length})")
        content = {"str": "str(buf[pos:{0}], 'utf-8')", "bytes": "bytes(buf[pos:{0}])", "records": "whole[pos:{0}]"}
        self._source.line(f"{target} = {content[kind].format(stop)}")
        self._source.line(f"pos = {stop}")

    def _array(self, element: FieldType, target: str, length: str, compact: bool, name: str) -> None:
        source = self._source
        least = smallest(element, self._version, self._flexible)
        source.line(f"left -= {length}")
        source.line(f"if {length} * {least} > end - pos: refuse_length({name!r}, {length})")
        source.line(f"if left < 0: refuse_elements({name!r})")
        if element.kind in FIXED and element.kind != "uuid":
            letter, width = FIXED[element.kind]
            source.line(f"{target} = list(unpack_from(f'>{{{length}}}{letter}', buf, pos))")
            source.line(f"pos += {length} * {width}")
            return
        made = source.local("l")
        source.line(f"{made} = []")
        source.open(f"while {length}:")  # faster than a loop over a range, which must be created
        source.line(f"{length} -= 1")
        if element.struct is not None:
            item = self._struct(element.struct)
        else:
            item = source.local("v")
            self._value(element, item, False, compact, name)
            self._flush()
        source.line(f"{made}.append({item})")
        source.close()
        source.line(f"{target} = {made}")

    # --- Tagged fields ---

    def _tags(self, cls: type[Struct], this: str) -> None:
        """Decode the tagged section at the end of a struct."""
        source = self._source
        known = tagged(cls, self._version)
        count = source.local("n")
        self._fixed("B", 1, count)
        self._flush()
        source.line(f"{this}.unknown_tags = ()")
        source.open(f"if {count}:")
        source.line(f"if {count} > 127: {count}, pos = rest_of_uvarint(buf, pos, {count})")
        source.line(f"left -= {count}")
        source.line("if left < 0: refuse_elements('the tagged section')")
        if known:
            self._known_tags(known, this, count)
        else:
            source.line(f"{this}.unknown_tags, pos = read_tags(buf, pos, {count})")
        source.close()

    def _known_tags(self, known: list[Field], this: str, count: str) -> None:
        source = self._source
        tag, stop, unknown = source.local("g"), source.local("q"), source.local("u")
        source.line(f"{tag} = -1")
        source.line(f"{unknown} = []")
        source.open(f"for _ in range({count}):")
        source.line(f"{tag}, pos, {stop} = read_tag(buf, pos, {tag})")
        for index, declared in enumerate(known):
            source.open(f"{'el' if index else ''}if {tag} == {declared.tag}:")
            self._field(declared, this)
            self._flush()
            source.close()
        source.open("else:")
        source.line(f"{unknown}.append(({tag}, bytes(buf[pos:{stop}])))")
        source.line(f"pos = {stop}")
        source.close()
        source.line(f"if pos != {stop}: refuse_tag({tag})")
        source.close()
        source.line(f"{this}.unknown_tags = tuple({unknown})")


def _refuse_length(name: str, length: int) -> NoReturn:
    if length < 0:
        raise MalformedMessage(f"{name} must not be null" if length == -1 else f"{name} has length {length}")
    raise MalformedMessage(f"{name} claims a length of {length}, more than allowed or than the message contains")


def _refuse_elements(name: str) -> NoReturn:
    raise TooManyElements(f"the message has more elements than it may have up to {name}")


def _refuse_tag(tag: int) -> NoReturn:
    raise MalformedMessage(f"tagged field {tag} does not have the length that it claims")


_SCOPE: Final[dict[str, Any]] = {
    "MalformedMessage": MalformedMessage,
    "new": object.__new__,
    "read_tag": read_tag,
    "read_tags": read_tags,
    "refuse_elements": _refuse_elements,
    "refuse_length": _refuse_length,
    "refuse_tag": _refuse_tag,
    "rest_of_uvarint": rest_of_uvarint,
    "struct_error": struct.error,
    "unpack_from": struct.unpack_from,
    "uuids": UUIDS,
}
