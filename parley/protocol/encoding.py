"""Generates the encoder of one version of one message as straight-line Python, and compiles it.

An encoder is a function ``(message, out, parts) -> out`` that appends to the bytearray ``out``. It does not copy large
records: it adds ``out`` and the records to the list ``parts`` and starts a new ``out``, so that one ``writev`` can send
all parts. Adjacent fields of fixed width are packed together, with the length or count that follows them.

If a message cannot be encoded (a null that the schema forbids, a number out of range, a value in a field that the
version lacks), the encoder may raise any error; ``fault`` then finds the reason and the field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeAlias

from parley.protocol.decoding import FIXED, STRING_BYTES_MAX, Source, present, tagged
from parley.protocol.primitives import tag_section, uvarint
from parley.protocol.schema import Buffer, Field, FieldType, Message, Struct
from parley.protocol.uuids import UUID

Encoder: TypeAlias = Callable[[Any, bytearray, list[Buffer]], bytearray]

COPIED_BYTES_MAX: Final = 1024  # records up to this size are copied, which is cheaper than another part of a writev

ERROR_TEXT_CUT: Final = 1_000
"""The number of characters that are kept of an error text that is too long for a string, for example because it lists
names from the client. Without this, the response could not be encoded."""


class EncodedArray:
    """The elements of an array, already encoded for one version of their message."""

    __slots__ = ("_content", "_count", "_version")

    def __init__(self, version: int, elements: Sequence[bytes]) -> None:
        self._version = version
        self._count = len(elements)
        self._content = b"".join(elements)

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """The size of the elements in bytes."""
        return len(self._content)

    def content(self, version: int) -> bytes:
        """Return the bytes of the elements. Raises ValueError if they were encoded for another version."""
        if version != self._version:
            raise ValueError(f"elements encoded for version {self._version} cannot be sent in version {version}")
        return self._content


def compile_encoder(cls: type[Message], version: int) -> Encoder:
    """Return the encoder of one version of a message."""
    encoder: Encoder = _EncoderWriter(cls, version).write(cls)
    return encoder


def compile_element_encoder(cls: type[Message], version: int, element: type[Struct]) -> Encoder:
    """Return the encoder of one element of an array in one version of a message."""
    encoder: Encoder = _EncoderWriter(cls, version).write(element)
    return encoder


class _EncoderWriter:
    def __init__(self, cls: type[Message], version: int) -> None:
        self._cls = cls
        self._version = version
        self._flexible = cls.is_flexible(version)
        self._source = Source("def run(m, out, parts):")
        self._run: list[tuple[str, str]] = []  # letter, expression of the fields that ``_flush`` packs
        self._out = "out"

    def write(self, struct: type[Struct]) -> Any:
        title = f"{struct.__qualname__} v{self._version}"
        self._struct(struct, "m")
        self._flush()
        self._source.line("return out")
        return self._source.compiled(f"<encoder of {title}>", _SCOPE)

    # --- Runs of fixed width ---

    def _emit(self, *run: tuple[str, str]) -> None:
        letters = "".join(letter for letter, _ in run)
        if letters in ("B", "x"):
            self._source.line(f"{self._out}.append({run[0][1] or 0})")
        elif letters:
            pack = self._source.keep("pack", struct.Struct(">" + letters).pack, letters)
            values = ", ".join(expression for _, expression in run if expression)
            self._source.line(f"{self._out} += {pack}({values})")

    def _flush(self) -> None:
        self._emit(*self._run)
        self._run = []

    def _length(self, kind: str, length: str, compact: bool) -> None:
        """Write a length or a count of a value that is not null."""
        if not compact:
            self._run.append(("h" if kind == "str" else "i", length))
            self._flush()
            return
        self._source.open(f"if {length} < 127:")
        self._emit(*self._run, ("B", f"{length} + 1"))
        self._source.close()
        self._source.open("else:")
        if kind == "str":
            self._source.line(f"if {length} > {STRING_BYTES_MAX}: refuse()")
        self._flush()
        self._source.line(f"{self._out} += uvarint({length} + 1)")
        self._source.close()

    # --- Fields ---

    def _struct(self, cls: type[Struct], this: str) -> None:
        for declared in cls.fields():
            if self._version not in declared.versions:
                self._forbid(declared, this)
            elif present(declared, self._version):
                self._field(declared, f"{this}.{declared.name}")
        if self._flexible:
            self._tags(cls, this)
        else:
            self._source.line(f"if {this}.unknown_tags: refuse()")

    def _is_default(self, declared: Field, this: str) -> str:
        """Return an expression that is true if the field has its default value."""
        value = f"{this}.{declared.name}"
        default = declared.default()
        if default is None:
            return f"{value} is None"
        if isinstance(default, Struct):
            kept = self._source.keep("default", default)
            return f"({value} is {kept} or {value} == {kept})"
        if isinstance(default, str | int | float | bytes | list):
            return f"{value} == {default!r}"
        return f"{value} == {self._source.keep('default', default)}"

    def _forbid(self, declared: Field, this: str) -> None:
        """Reject a value that this version cannot represent."""
        if not declared.ignorable:
            self._source.line(f"if not {self._is_default(declared, this)}: refuse()")

    def _field(self, declared: Field, value: str) -> None:
        kind = declared.type
        nullable = self._version in declared.nullable
        if kind.kind == "struct" and nullable:
            # Kafka writes a null struct as -1, but as 0 in a tagged field.
            self._nullable_struct(kind, value, null=0 if self._version in declared.tagged else -1)
        else:
            if _is_error_text(declared):
                value = self._shortened(value)
            self._value(kind, value, nullable, self._flexible and declared.compact)

    def _shortened(self, value: str) -> str:
        """Shorten an error text that is too long for a string. Returns the name of the variable for the shortened
        text."""
        text = self._source.local("e")
        self._source.line(f"{text} = {value}")
        self._source.line(
            f"if {text} is not None and len({text}) > {STRING_BYTES_MAX // 4}: {text} = shortened({text})"
        )
        return text

    def _nullable_struct(self, kind: FieldType, value: str, *, null: int) -> None:
        assert kind.struct is not None
        this = self._source.local("m")
        self._flush()
        self._source.line(f"{this} = {value}")
        self._source.open(f"if {this} is None:")
        self._emit(("b", str(null)))
        self._source.close()
        self._source.open("else:")
        self._run.append(("b", "1"))
        self._struct(kind.struct, this)
        self._flush()
        self._source.close()

    def _value(self, kind: FieldType, value: str, nullable: bool, compact: bool) -> None:
        if kind.kind == "uuid":
            self._run.append(("16s", f"{value}.bytes"))
        elif kind.kind in FIXED:
            self._run.append((FIXED[kind.kind][0], value))
        elif kind.struct is not None:
            this = self._source.local("m")
            self._source.line(f"{this} = {value}")
            self._struct(kind.struct, this)
        else:
            self._sized(kind, value, nullable, compact)

    def _sized(self, kind: FieldType, value: str, nullable: bool, compact: bool) -> None:
        """Encode a value that starts with a length: a string, bytes, records or an array."""
        source = self._source
        content, length = source.local("v"), source.local("n")
        source.line(f"{content} = {value}")
        if nullable:
            source.open(f"if {content} is None:")
            self._emit(*self._run, ("B", "0") if compact else ("h" if kind.kind == "str" else "i", "-1"))
            source.close()
            source.open("else:")
        if kind.kind == "str":
            source.line(f"{content} = {content}.encode()")
        if kind.kind == "records":
            source.line(f"{length}, {content} = measured({content})")
        else:
            source.line(f"{length} = len({content})")
        self._length(kind.kind, length, compact)
        self._run = []
        if kind.kind == "records":
            self._records(content, length)
        elif kind.element is None:
            source.line(f"{self._out} += {content}")
        else:
            self._array(kind.element, content, length, compact)
        source.close(int(nullable))

    def _records(self, content: str, length: str) -> None:
        source = self._source
        source.open(f"if {length} <= {COPIED_BYTES_MAX}:")
        source.line(f"for piece in {content}: out += piece")
        source.close()
        source.open("else:")
        source.line("parts.append(out)")
        source.line(f"parts.extend({content})")
        source.line("out = bytearray()")
        source.close()

    def _array(self, element: FieldType, items: str, length: str, compact: bool) -> None:
        source = self._source
        if element.kind in FIXED and element.kind != "uuid":
            source.line(f"{self._out} += pack(f'>{{{length}}}{FIXED[element.kind][0]}', *{items})")
            return
        item = source.local("m")
        is_encoded_ahead = element.struct is not None and element.struct.ENCODED_AHEAD
        if is_encoded_ahead:
            source.open(f"if type({items}) is EncodedArray:")
            source.line(f"{self._out} += {items}.content({self._version})")
            source.close()
            source.open("else:")
        source.open(f"for {item} in {items}:")
        if element.struct is not None:
            self._struct(element.struct, item)
        else:
            self._value(element, item, False, compact)
        self._flush()
        source.close(1 + is_encoded_ahead)

    # --- Tagged fields ---

    def _tags(self, cls: type[Struct], this: str) -> None:
        """Encode the tagged section at the end of a struct."""
        source = self._source
        known = tagged(cls, self._version)
        plain = [f"not {this}.unknown_tags", *(self._is_default(declared, this) for declared in known)]
        source.open(f"if {' and '.join(plain)}:")
        self._emit(*self._run, ("x", ""))
        source.close()
        source.open("else:")
        self._flush()
        section = source.local("s")
        source.line(f"{section} = list({this}.unknown_tags)")
        around = self._out
        for declared in known:
            source.open(f"if not {self._is_default(declared, this)}:")
            self._out = source.local("t")
            source.line(f"{self._out} = bytearray()")
            self._field(declared, f"{this}.{declared.name}")
            self._flush()
            source.line(f"{section}.append(({declared.tag}, {self._out}))")
            source.close()
            self._out = around
        source.line(f"{self._out} += tag_section({section})")
        source.close()
        self._run = []


def _is_error_text(declared: Field) -> bool:
    """Return True if the field contains a human-readable error or status message."""
    return declared.type.kind == "str" and declared.name.endswith(("error_message", "status_detail"))


def _shortened(text: str) -> str:
    fits = len(text.encode(errors="replace")) <= STRING_BYTES_MAX
    return text if fits else text[:ERROR_TEXT_CUT] + " ..."


def _measured(records: Any) -> tuple[int, Any]:
    """Return the size in bytes of a buffer or a sequence of buffers, and the buffers."""
    if isinstance(records, bytes | bytearray | memoryview):
        return len(records), (records,)
    return sum(map(len, records)), records


def _refuse() -> NoReturn:
    raise ValueError("this version cannot represent the value")


def fault(this: Struct, version: int, flexible: bool) -> str:
    """Return the reason why the message cannot be encoded in this version, starting with the path to the field; "" if
    it can."""
    for declared in type(this).fields():
        value = getattr(this, declared.name)
        if version not in declared.versions:
            wrong = (
                ""
                if declared.ignorable or value == declared.default()
                else f" has a value, {value!r}, that this version lacks"
            )
        elif value is None:
            wrong = "" if version in declared.nullable else " must not be null"
        else:
            if _is_error_text(declared) and isinstance(value, str):
                value = _shortened(value)
            wrong = _fault_of_value(declared.type, value, version, flexible)
        if wrong:
            return declared.name + wrong
    tags = [tag for tag, _ in this.unknown_tags]
    if tags and not flexible:
        return "unknown_tags must be empty"
    known = {declared.tag for declared in tagged(type(this), version)}
    return "unknown_tags contains a tag twice" if len({*tags, *known}) < len(tags) + len(known) else ""


def _fault_of_value(kind: FieldType, value: Any, version: int, flexible: bool) -> str:
    if isinstance(value, EncodedArray):
        return ""
    if not isinstance(value, _PYTHON_TYPES.get(kind.kind, object)):
        return f" is a {type(value).__name__}, not {kind.kind}"
    if kind.struct is not None:
        inner = fault(value, version, flexible)
        return inner and f".{inner}"
    if kind.element is not None:
        inner_faults = (_fault_of_value(kind.element, item, version, flexible) for item in value)
        return next((f"[{index}]{wrong}" for index, wrong in enumerate(inner_faults) if wrong), "")
    if kind.kind == "str" and len(value.encode(errors="replace")) > STRING_BYTES_MAX:
        return f" is longer than {STRING_BYTES_MAX} bytes"
    if kind.kind == "str" and value.encode(errors="replace") != value.encode(errors="surrogatepass"):
        return " cannot be written as UTF-8"
    if kind.kind in FIXED and kind.kind != "uuid":
        try:
            struct.pack(f">{FIXED[kind.kind][0]}", value)
        except struct.error:
            return f" is {value!r}, out of the range of {kind.kind}"
    return ""


_PYTHON_TYPES: Final[dict[str, Any]] = {
    **dict.fromkeys(("i8", "i16", "i32", "i64", "u16", "u32", "bool"), int),
    "f64": int | float,
    "str": str,
    "uuid": UUID,
    "bytes": bytes | bytearray | memoryview,
    "array": list | tuple,
    "struct": Struct,
}
_SCOPE: Final[dict[str, Any]] = {
    "EncodedArray": EncodedArray,
    "measured": _measured,
    "pack": struct.pack,
    "refuse": _refuse,
    "shortened": _shortened,
    "tag_section": tag_section,
    "uvarint": uvarint,
}
