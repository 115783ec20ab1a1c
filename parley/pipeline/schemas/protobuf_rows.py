"""Converts Protobuf messages to rows of Arrow, and back, exactly.

Columns: a message is a struct; repeated fields are lists, maps are maps; uint32 is a long, uint64 a decimal of 20
digits, an enum the name of its value, ``google.protobuf.Timestamp`` a timestamp. A field with presence is null if it is
not set; other fields have their default, so they refuse null. Unknown enum values, timestamps finer than a microsecond,
and recursive messages are rejected. Data of another version is read as the reader's message, by field numbers.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from itertools import count
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from parley.pipeline.schemas.model import BadColumn, BadSchema, Loader, Schema, inside
from parley.pipeline.schemas.proto_text import proto_text
from parley.pipeline.schemas.protobuf import in_order, is_map, message_at, messages_of, place_of
from parley.pipeline.values.exact import DoesNotFit

_INSTANT: Final = pa.timestamp("us", tz="UTC")
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_KINDS: Final = {
    1: pa.float64(), 2: pa.float32(), 3: pa.int64(), 4: pa.decimal128(20, 0), 5: pa.int32(),
    6: pa.decimal128(20, 0), 7: pa.int64(), 8: pa.bool_(), 9: pa.string(), 12: pa.binary(), 13: pa.int64(),
    14: pa.string(), 15: pa.int32(), 16: pa.int64(), 17: pa.int32(), 18: pa.int64(),
}  # fmt: skip
"""The Arrow types of scalar fields, by the numbers of the types in descriptors."""
_WRITTEN: Final = {
    pa.float64(): 1, pa.float32(): 2, pa.int64(): 3, pa.int8(): 5, pa.int16(): 5, pa.int32(): 5, pa.bool_(): 8,
    pa.string(): 9, pa.binary(): 12,
}  # fmt: skip
_MESSAGE: Final = 11
_NANOS_PER_MICRO: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _first(file: Any) -> Any:
    found = in_order(file)
    if not found:
        raise BadSchema("The schema has no message")
    return found[0]


def _struct(message: Any, within: tuple[str, ...] = ()) -> pa.DataType:
    if message.full_name in within:
        raise BadSchema(f"The message {message.full_name} is recursive, which columns cannot represent")
    inner = (*within, message.full_name)
    return pa.struct([(one.name, _kind(one, inner)) for one in message.fields])


def _kind(field: Any, within: tuple[str, ...]) -> pa.DataType:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_single(key, within), _single(value, within))
    single = _single(field, within)
    return pa.list_(single) if field.is_repeated else single


def _single(field: Any, within: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        return _INSTANT if field.message_type.full_name == _TIMESTAMP else _struct(field.message_type, within)
    return _KINDS[field.type]


def column_type(schema: Schema, load: Loader) -> pa.DataType:
    """Return the type of a column for the schema's first message. Raises BadSchema."""
    return _struct(_first(messages_of(schema, load)))


# --- Reading ---


def reader(written: Schema, wanted: Schema, load: Loader) -> Callable[[bytes, int], Any]:
    """Return the function that reads a message into the column of the ``wanted`` schema. The message follows its
    position in the file (``place_of``).

    Raises BadSchema. The function raises ValueError.
    """
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    theirs, ours = messages_of(written, load), _first(messages_of(wanted, load))
    make = GetMessageClass(ours)

    def read(data: bytes, begin: int) -> Any:
        indexes, begin = place_of(data, begin)
        name = message_at(theirs, indexes).name
        if name != ours.name:
            raise ValueError(f"it is a message {name}, not {ours.name}")
        try:
            message = make.FromString(data[begin:])
        except DecodeError:
            raise ValueError(f"it is not a message of type {ours.full_name}") from None
        return _row(message)

    return read


def _row(message: Any) -> dict[str, Any]:
    return {one.name: _value(message, one) for one in message.DESCRIPTOR.fields}


def _value(message: Any, field: Any) -> Any:
    if is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return {key: _one(one, inner) for key, one in getattr(message, field.name).items()}
    if field.is_repeated:
        return [_one(one, field) for one in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(getattr(message, field.name), field)


def _one(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return _instant(value) if field.message_type.full_name == _TIMESTAMP else _row(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        if known is None:
            raise DoesNotFit("an unknown value of an enum", pa.string(), field.name)
        return known.name
    return Decimal(value) if field.type in (4, 6) else value


def _instant(value: Any) -> dt.datetime:
    if value.nanos % _NANOS_PER_MICRO:
        raise DoesNotFit("a timestamp with a finer fraction", _INSTANT)
    try:
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(
            seconds=value.seconds, microseconds=value.nanos // _NANOS_PER_MICRO
        )
    except OverflowError:
        raise DoesNotFit("a timestamp outside the years 1 to 9999", _INSTANT) from None


# --- Writing ---


def writer(schema: Schema, load: Loader) -> Callable[[Any], bytes]:
    """Return the function that encodes a value of the column as the schema's first message. Raises BadSchema.

    The function raises ValueError.
    """
    from google.protobuf.message import EncodeError
    from google.protobuf.message_factory import GetMessageClass

    make = GetMessageClass(_first(messages_of(schema, load)))

    def write(value: Any) -> bytes:
        message = make()
        _fill(message, value)
        try:
            return b"\0" + bytes(message.SerializeToString(deterministic=True))
        except EncodeError as error:
            raise ValueError(f"the value does not fit its Protobuf schema: {error}") from None

    return write


def _fill(message: Any, row: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        value = row.get(field.name)
        if value is None:
            if not field.has_presence:  # it would be read back as the default: zero, an empty text, list or map
                raise DoesNotFit("null for a Protobuf field without presence", pa.struct([]), field.name)
            continue
        if is_map(field):
            inner = field.message_type.fields_by_name["value"]
            for key, one in dict(value).items():
                _refuse_null(one, field)
                if inner.message_type is not None:
                    _set_message(getattr(message, field.name)[key], one)
                else:
                    getattr(message, field.name)[key] = _scalar(one, inner)
        elif field.is_repeated:
            for one in value:
                _refuse_null(one, field)
                if field.message_type is not None:
                    _set_message(getattr(message, field.name).add(), one)
                else:
                    getattr(message, field.name).append(_scalar(one, field))
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            _set_message(getattr(message, field.name), value)
        else:
            setattr(message, field.name, _scalar(value, field))
    for oneof in message.DESCRIPTOR.oneofs:
        if sum(row.get(one.name) is not None for one in oneof.fields) > 1:
            raise DoesNotFit(f"several fields of the oneof {oneof.name}", pa.struct([]))


def _refuse_null(value: Any, field: Any) -> None:
    if value is None:
        raise DoesNotFit("null in a list or map", pa.struct([]), field.name)


def _set_message(message: Any, value: Any) -> None:
    if message.DESCRIPTOR.full_name != _TIMESTAMP:
        _fill(message, value)
        return
    micros = (value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    message.seconds, rest = divmod(micros, 1_000_000)
    message.nanos = rest * _NANOS_PER_MICRO


def _scalar(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_name.get(value)
        if known is None:
            raise DoesNotFit("a name that the enum does not contain", pa.string(), field.name)
        return known.number
    try:
        return int(value) if field.type in (4, 6) else field_checked(value, field)
    except ValueError:
        raise DoesNotFit("a number out of range", _KINDS[field.type], field.name) from None


def field_checked(value: Any, field: Any) -> Any:
    """Return the value if it is in the field's range: the column of a uint32 has a wider range. Raises ValueError."""
    if field.type in (7, 13) and not 0 <= value < 1 << 32:
        raise ValueError("not a uint32")
    return value


# --- Schemas of columns ---


def derived_text(kind: pa.DataType, before: Schema | None, load: Loader) -> str:
    """Return the text of a schema for a column. Fields keep their numbers from the earlier version, and new fields get
    higher numbers.

    Raises BadColumn, and BadSchema for the earlier version.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    old = None if before is None else _first(messages_of(before, load))
    file = FileDescriptorProto(name="default.proto", syntax="proto3")
    if old is not None:
        file.package = old.file.package
    if not types.is_struct(kind):
        raise BadColumn(f"is of type {kind}, but a value in Protobuf is a message: make a struct of it")
    message = file.message_type.add(name=old.name if old is not None else "Row")
    _describe(message, kind, old, file)
    return proto_text(file)


def _describe(message: Any, kind: pa.DataType, old: Any, file: Any) -> None:
    """Add the fields of a struct to a message. ``old`` is the message of the earlier version. Raises BadColumn."""
    known = {} if old is None else {name: one.number for name, one in old.fields_by_name.items()}
    following = max(known.values(), default=0) + 1
    for one in kind:
        number = known.get(one.name)
        if number is None:
            number, following = following, following + 1
        message.field.add(name=one.name, number=number, label=1)
    for field, one in zip(message.field, kind, strict=True):
        with inside(one.name):
            if not _NAME.fullmatch(one.name):
                raise BadColumn("has a name that Protobuf does not allow: rename it, with letters, digits, underscores")
            _set_type(field, one.type, message, _message_of(old, one.name), file)


def _message_of(old: Any, name: str) -> Any:
    """Return the message type of a field of an earlier message; None if there is none."""
    field = None if old is None else old.fields_by_name.get(name)
    return None if field is None else field.message_type


def _set_type(field: Any, kind: pa.DataType, message: Any, old: Any, file: Any) -> None:
    """Set the type of a field of the message to that of a column. Raises BadColumn."""
    if types.is_map(kind):
        entry = message.nested_type.add(name=f"{_camel_case(field.name)}Entry")
        entry.options.map_entry = True
        with inside("key"):
            if not (types.is_integer(kind.key_type) or kind.key_type in (pa.string(), pa.bool_())):
                raise BadColumn.of_type(kind.key_type, "Protobuf for keys")
            _set_single(entry.field.add(name="key", number=1, label=1), field.name, kind.key_type, message, None, file)
        with inside("value"):
            value = entry.field.add(name="value", number=2, label=1)
            _set_single(value, field.name, kind.item_type, message, _message_of(old, "value"), file)
        field.label, field.type, field.type_name = 3, _MESSAGE, entry.name
    elif types.is_list(kind):
        field.label = 3
        with inside("element"):
            _set_single(field, field.name, kind.value_type, message, old, file)
    else:
        _set_single(field, field.name, kind, message, old, file)
        field.proto3_optional = field.type != _MESSAGE


def _set_single(field: Any, name: str, kind: pa.DataType, message: Any, old: Any, file: Any) -> None:
    """Set the type of a field that contains one value: the message's field with this name, or the key or value of its
    map.

    Raises BadColumn.
    """
    if types.is_timestamp(kind) and kind.tz:
        field.type, field.type_name = _MESSAGE, f".{_TIMESTAMP}"
        if "google/protobuf/timestamp.proto" not in file.dependency:
            file.dependency.append("google/protobuf/timestamp.proto")
    elif types.is_struct(kind):
        wanted = old.name if old is not None else f"{name[:1].upper()}{name[1:]}Message"
        field.type, field.type_name = _MESSAGE, _nested(message, wanted, kind, old, file)
    elif types.is_list(kind) or types.is_map(kind):
        raise BadColumn(f"is of type {kind}, which Protobuf lacks in a list or a map: put it into a struct")
    elif kind in _WRITTEN:
        field.type = _WRITTEN[kind]
    else:
        raise BadColumn.of_type(kind, "Protobuf")


def _nested(message: Any, wanted: str, kind: pa.DataType, old: Any, file: Any) -> str:
    """Add a message for a struct inside another message, and return its name. Raises BadColumn.

    Two fields share a message if the earlier version has one for both, and they still have the same type. Otherwise the
    second one gets a number, because messages and fields need different names.
    """
    from google.protobuf.descriptor_pb2 import DescriptorProto

    made = DescriptorProto(name=wanted)
    _describe(made, kind, old, file)
    there = {one.name: one for one in message.nested_type}
    taken = there.keys() | {one.name for one in message.field}
    for number in count(2):
        if old is not None and there.get(made.name) == made:
            return made.name
        if made.name not in taken:
            break
        made.name = f"{wanted}{number}"
    message.nested_type.append(made)
    return str(made.name)


def _camel_case(name: str) -> str:
    """Return a field's name in the notation that compilers use for the entries of a map."""
    return "".join(f"{part[:1].upper()}{part[1:]}" for part in name.split("_"))
