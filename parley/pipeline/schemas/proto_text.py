"""Prints a descriptor as the text of a ``.proto`` file, in the order of its parts.

Prints messages, enums, fields, maps, oneofs, reserved and extension ranges, services, and the usual options. Custom
options and groups are left out: the caller compiles the text and compares the result (``protobuf.canonical``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto


_ENUM_MAX: Final = 0x7FFF_FFFF
_FIELD_BEHIND: Final = 0x2000_0000
_SCALARS: Final = (
    "", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message",
    "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
_REQUIRED, _REPEATED = 2, 3


def proto_text(file: FileDescriptorProto) -> str:
    """Return the text of the file, ending with a line break."""
    lines = [f'syntax = "{file.syntax or "proto2"}";']
    if file.package:
        lines.append(f"package {file.package};")
    if file.dependency:
        lines.append("")
    for number, name in enumerate(file.dependency):
        kind = "public " if number in file.public_dependency else "weak " if number in file.weak_dependency else ""
        lines.append(f"import {kind}{_quoted(name)};")
    options = [f"option {one};" for one in _options(file.options)]
    lines += ["", *options] if options else []
    for message in file.message_type:
        lines += ["", *_message(message, file.syntax)]
    for enum in file.enum_type:
        lines += ["", *_enum(enum)]
    lines += _extensions(file.extension, file.syntax)
    for service in file.service:
        lines += ["", f"service {service.name} {{", *_indented(_service(service)), "}"]
    return "\n".join(lines) + "\n"


def _message(message: DescriptorProto, syntax: str) -> Iterator[str]:
    yield f"message {message.name} {{"
    yield from _indented(_body(message, syntax))
    yield "}"


def _body(message: DescriptorProto, syntax: str) -> Iterator[str]:
    yield from (f"option {one};" for one in _options(message.options, skip=("map_entry",)))
    maps = {one.name: one for one in message.nested_type if one.options.map_entry}
    written: set[int] = set()
    for field in message.field:
        if not field.HasField("oneof_index") or field.proto3_optional:
            yield _field(field, syntax, maps)
        elif field.oneof_index not in written:
            written.add(field.oneof_index)
            yield f"oneof {message.oneof_decl[field.oneof_index].name} {{"
            for one in message.field:
                if one.HasField("oneof_index") and one.oneof_index == field.oneof_index:
                    yield f"  {_field(one, syntax, maps, in_oneof=True)}"
            yield "}"
    for nested in message.nested_type:
        if not nested.options.map_entry:
            yield from _message(nested, syntax)
    for enum in message.enum_type:
        yield from _enum(enum)
    yield from _extensions(message.extension, syntax)
    for extensible in message.extension_range:
        yield f"extensions {_range(extensible.start, extensible.end - 1, _FIELD_BEHIND - 1)};"
    for reserved in message.reserved_range:
        yield f"reserved {_range(reserved.start, reserved.end - 1, _FIELD_BEHIND - 1)};"
    if message.reserved_name:
        yield f"reserved {', '.join(map(_quoted, message.reserved_name))};"


def _field(field: FieldDescriptorProto, syntax: str, maps: dict[str, Any], *, in_oneof: bool = False) -> str:
    entry = maps.get(field.type_name.rpartition(".")[2]) if field.label == _REPEATED else None
    if entry is not None:
        kind = f"map<{_type(entry.field[0])}, {_type(entry.field[1])}>"
    else:
        label = ""
        if field.label == _REPEATED:
            label = "repeated "
        elif field.label == _REQUIRED:
            label = "required "
        elif field.proto3_optional or (syntax != "proto3" and not in_oneof):
            label = "optional "
        kind = label + _type(field)
    options = list(_options(field.options))
    if field.HasField("default_value"):
        options.insert(0, f"default = {_default(field)}")
    if field.HasField("json_name"):
        options.append(f"json_name = {_quoted(field.json_name)}")
    shown = f" [{', '.join(options)}]" if options else ""
    return f"{kind} {field.name} = {field.number}{shown};"


def _type(field: FieldDescriptorProto) -> str:
    return field.type_name or _SCALARS[field.type]


def _default(field: FieldDescriptorProto) -> str:
    kind = _SCALARS[field.type]
    if kind == "bytes":
        return f'"{field.default_value}"'  # a descriptor has it escaped already
    return _quoted(field.default_value) if kind == "string" else field.default_value


def _enum(enum: Any) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    yield from (f"  option {one};" for one in _options(enum.options))
    for value in enum.value:
        options = ", ".join(_options(value.options))
        yield f"  {value.name} = {value.number}{f' [{options}]' if options else ''};"
    for reserved in enum.reserved_range:
        yield f"  reserved {_range(reserved.start, reserved.end, _ENUM_MAX)};"
    if enum.reserved_name:
        yield f"  reserved {', '.join(map(_quoted, enum.reserved_name))};"
    yield "}"


def _extensions(fields: Any, syntax: str) -> Iterator[str]:
    for field in fields:
        yield f"extend {field.extendee} {{"
        yield f"  {_field(field, syntax, {})}"
        yield "}"


def _service(service: Any) -> Iterator[str]:
    yield from (f"option {one};" for one in _options(service.options))
    for method in service.method:
        request_type = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
        given = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
        options = "".join(f" option {one};" for one in _options(method.options))
        yield f"rpc {method.name} ({request_type}) returns ({given}){f' {{{options} }}' if options else ';'}"


def _options(options: Any, skip: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the options that are set, as ``name = value``, except custom ones and those in ``skip``."""
    for field, value in options.ListFields():
        if field.is_extension or field.message_type is not None or field.name in skip:
            continue
        for one in value if field.is_repeated else [value]:
            if field.enum_type is not None:
                yield f"{field.name} = {field.enum_type.values_by_number[one].name}"
            elif isinstance(one, bool):
                yield f"{field.name} = {str(one).lower()}"
            else:
                yield f"{field.name} = {_quoted(one) if isinstance(one, str) else one}"


def _range(first: int, last: int, most: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last == most else last}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
