"""Decides which changes to a Protobuf schema keep data readable, by the rules of Confluent's registry.

A field is identified by its number: its name may change, its type only within a group with the same encoding. Fields
may be added and removed, unless they are required. A field may leave a oneof. It may move into one only if no field
there could be set together with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final

from parley.pipeline.registry.compatibility.comparison_limits import DIFFERENCES_MAX, Steps
from parley.pipeline.schemas.model import Loader, Schema
from parley.pipeline.schemas.protobuf import files_of, pool_of

_GROUPS: Final = {
    **dict.fromkeys((3, 4, 5, 8, 13, 14), "number"),  # int64, uint64, int32, bool, uint32, enum
    **dict.fromkeys((17, 18), "signed number"),
    **dict.fromkeys((9, 12), "text or bytes"),
    **dict.fromkeys((7, 15), "fixed32"),
    **dict.fromkeys((6, 16), "fixed64"),
    1: "double",
    2: "float",
}
"""The groups of scalar types with the same encoding, by their numbers in descriptors."""


def unreadable(reader: Schema, writer: Schema, load: Loader, steps: Steps) -> list[str]:
    """Return the reasons why the reader's schema cannot read data of the writer's schema. Raises BadSchema."""
    files = [files_of(one, load) for one in (writer, reader)]
    before, after = (pool_of(one).FindFileByName(one[-1].name) for one in files)
    found = [] if before.package == after.package else ["PACKAGE_CHANGED at #/"]
    types = _types(before.message_types_by_name, after.message_types_by_name, "#/", _Seen(steps))
    return list(islice(chain(found, types), DIFFERENCES_MAX))


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """The pairs of messages that were already compared, and the counter of steps."""

    steps: Steps
    pairs: set[tuple[str, str]] = dataclasses.field(default_factory=set)


def _types(before: Any, after: Any, path: str, seen: _Seen) -> Iterator[str]:
    for name, message in before.items():
        if message.GetOptions().map_entry:
            continue
        if name not in after:
            yield f"MESSAGE_REMOVED at {path}{name}"
        else:
            yield from _messages(message, after[name], f"{path}{name}", seen)


def _messages(before: Any, after: Any, path: str, seen: _Seen) -> Iterator[str]:
    pair = (before.full_name, after.full_name)
    if pair in seen.pairs:
        return
    seen.pairs.add(pair)
    yield from _oneofs(before, after, path)
    old, new = before.fields_by_number, after.fields_by_number
    for number, field in old.items():
        seen.steps.spend()
        at = f"{path}/{number}"
        if number in new:
            yield from _fields(field, new[number], at, seen)
        elif _oneof(field) is not None:
            seen.steps.spend(light=10 * len(_oneof(field).fields))
            if any(one.number in new for one in _oneof(field).fields) or _oneof(field).name in _names(after):
                yield f"ONEOF_FIELD_REMOVED at {path}/{_oneof(field).name}/{number}"
        elif field.is_required:
            yield f"REQUIRED_FIELD_REMOVED at {at}"
    for number, field in new.items():
        if number not in old and field.is_required:
            yield f"REQUIRED_FIELD_ADDED at {path}/{number}"
    yield from _types(before.nested_types_by_name, after.nested_types_by_name, f"{path}/", seen)


def _oneofs(before: Any, after: Any, path: str) -> Iterator[str]:
    """Yield a difference for each oneof that now contains fields that could be set together before."""
    for oneof in after.oneofs:
        if _is_synthetic(oneof):
            continue
        old = [before.fields_by_number[one.number] for one in oneof.fields if one.number in before.fields_by_number]
        alone = [one for one in old if _oneof(one) is None]
        groups = {_oneof(one).name for one in old if _oneof(one) is not None}
        if len(alone) + len(groups) > 1:
            kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if len(alone) > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
            yield f"{kind} at {path}/{oneof.name}"


def _is_synthetic(oneof: Any) -> bool:
    """Return True if protoc created the oneof for an ``optional`` field.

    Such a oneof has one field, and its name is the field's name after an underscore.
    """
    return len(oneof.fields) == 1 and oneof.name == f"_{oneof.fields[0].name}"


def _oneof(field: Any) -> Any:
    oneof = field.containing_oneof
    return None if oneof is None or _is_synthetic(oneof) else oneof


def _names(message: Any) -> set[str]:
    return {one.name for one in message.oneofs}


def _fields(before: Any, after: Any, path: str, seen: _Seen) -> Iterator[str]:
    kinds = _kind(before), _kind(after)
    if kinds[0] != kinds[1]:
        yield f"FIELD_KIND_CHANGED at {path}"
    elif kinds[0] == "map":
        for old, new in zip(before.message_type.fields, after.message_type.fields, strict=True):
            yield from _fields(old, new, path, seen)
    elif kinds[0] == "message":
        if _local(before.message_type) != _local(after.message_type):
            yield f"FIELD_NAMED_TYPE_CHANGED at {path}"
        else:
            yield from _messages(before.message_type, after.message_type, path, seen)
    elif _GROUPS[before.type] != _GROUPS[after.type]:
        yield f"FIELD_SCALAR_KIND_CHANGED at {path}"
    elif _label(before) != _label(after) and _GROUPS[before.type] != "text or bytes":
        yield f"FIELD_NUMERIC_LABEL_CHANGED at {path}"


def _kind(field: Any) -> str:
    if field.message_type is None:
        return "scalar"
    return "map" if field.message_type.GetOptions().map_entry else "message"


def _label(field: Any) -> str:
    if field.is_repeated:
        return "repeated"
    return "required" if field.is_required else "single"


def _local(message: Any) -> str:
    """Return the full name of a message or enum without the package."""
    package = message.file.package
    return str(message.full_name.removeprefix(f"{package}.") if package else message.full_name)
