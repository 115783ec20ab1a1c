"""Protobuf schemas as descriptors, from the text of a ``.proto`` file or a FileDescriptorProto in base64.

Rules: text is compiled by ``protoc`` (of ``grpcio-tools``) in a separate process with a time limit. Its imports must be
references, or files that come with the libraries. ``proto_text`` prints the canonical text from the descriptor. If it
cannot print a schema completely, the canonical text is the descriptor in base64.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from parley.pipeline.schemas.model import BadSchema, Loader, Schema, closure
from parley.pipeline.schemas.proto_text import proto_text

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto


NAME: Final = "default.proto"
_SECONDS: Final = 20.0
_UNNAMED: Final = re.compile(r"""//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?""", re.DOTALL)
"""Matches comments and strings. An unclosed one ends with the text or the line, so one pass over the text is enough."""
_NAME: Final = re.compile(r"(?<!\w)[A-Za-z_]\w*")
_KEYWORDS: Final = frozenset(
    {
        *("syntax", "package", "import", "weak", "option", "message", "enum", "service", "rpc", "returns", "stream"),
        *("oneof", "map", "group", "optional", "required", "repeated", "default", "json_name", "packed", "extend"),
        *("extensions", "reserved", "to", "max"),
    }
)
"""Words that may occur a different number of times in two texts of the same schema. They are ignored as names."""
_CACHED: Final = 1000
_PLACE_MAX: Final = 100
"""The maximum depth of a nested message that is a value: three or four in practice."""
_KNOWN: Final = {
    **{
        f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
        for name in ("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct",
                     "timestamp", "type", "wrappers")
    },
    **{
        f"google/type/{name}.proto": f"google.type.{name}_pb2"
        for name in ("calendar_period", "color", "date", "datetime", "dayofweek", "decimal", "expr", "fraction",
                     "interval", "latlng", "localized_text", "money", "month", "phone_number", "postal_address",
                     "quaternion", "timeofday")
    },
    "confluent/meta.proto": "confluent_kafka.schema_registry.confluent.meta_pb2",
    "confluent/type/decimal.proto": "confluent_kafka.schema_registry.confluent.type.decimal_pb2",
    "confluent/types/decimal.proto": "confluent_kafka.schema_registry.confluent.types.decimal_pb2",
}  # fmt: skip
"""The files that a schema may import without a reference, as in Confluent's registry."""


def files_of(schema: Schema, load: Loader) -> tuple[FileDescriptorProto, ...]:
    """Return the descriptors of all files that the schema imports, followed by its own. Raises BadSchema."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    others = tuple((name, one.text) for name, one in closure(schema, load).items())
    return tuple(FileDescriptorProto.FromString(one) for one in _files(schema.text, others))


def pool_of(files: tuple[FileDescriptorProto, ...]) -> Any:
    """Return a descriptor pool with these files, the last of which is the schema's own. Raises BadSchema."""
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    try:
        for one in files:
            pool.Add(one) if hasattr(pool, "Add") else pool.AddSerializedFile(one.SerializeToString())
        pool.FindFileByName(files[-1].name)
    except (TypeError, KeyError, ValueError) as error:
        raise BadSchema(f"Invalid Protobuf schema: {error}") from None
    return pool


def canonical(schema: Schema, load: Loader) -> str:
    """Return the text that is printed from the schema's descriptor, if it is equivalent; otherwise the descriptor in
    base64.

    Raises BadSchema.
    """
    others = tuple((name, one.text) for name, one in closure(schema, load).items())
    return _canonical(schema.text, others)


def serialized(schema: Schema, load: Loader) -> str:
    """Return the descriptor in base64, the form that clients request with ``format=serialized``. Raises BadSchema."""
    return base64.b64encode(files_of(schema, load)[-1].SerializeToString()).decode()


def may_be_same(text: str, other: str) -> bool:
    """Return False if the two texts use different names, so that they cannot be the same schema.

    This is cheap, because it does not run ``protoc``.
    """
    own, others = _names(text), _names(other)
    return not own or not others or own == others


@lru_cache(_CACHED)
def _names(text: str) -> frozenset[str]:
    """Return the parts of all names in the text; an empty set for a descriptor in base64."""
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return frozenset(_NAME.findall(_UNNAMED.sub(" ", text))) - _KEYWORDS
    return frozenset()


@lru_cache(_CACHED)
def _canonical(text: str, others: tuple[tuple[str, str], ...]) -> str:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    own = _files(text, others)[-1]
    printed = proto_text(FileDescriptorProto.FromString(own))
    try:
        if printed == text or _files(printed, others)[-1] == own:
            return printed
    except BadSchema:
        pass
    return base64.b64encode(own).decode()


@lru_cache(_CACHED)
def _files(text: str, others: tuple[tuple[str, str], ...]) -> tuple[bytes, ...]:
    """Return the descriptors of all files, serialized; the last is that of ``text``. Raises BadSchema."""

    made: dict[str, FileDescriptorProto] = {}
    for name, one in [*others, (NAME, text)]:
        own = _descriptor(one, name, made)
        _add_known(own.dependency, made)
        for imported in own.dependency:
            if imported not in made:
                raise BadSchema(f"Invalid Protobuf schema: {imported} is imported, and no reference has this name")
        made[name] = own
        pool_of(tuple(made.values()))
    return tuple(one.SerializeToString(deterministic=True) for one in made.values())


def _descriptor(text: str, name: str, others: dict[str, FileDescriptorProto]) -> FileDescriptorProto:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    if not text.strip():
        raise BadSchema("Invalid Protobuf schema: it is empty")
    try:
        own = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        own = _compiled(text, name, others)
    own.name = name
    own.ClearField("source_code_info")
    _plain(own.message_type)
    for each in own.extension:
        each.ClearField("json_name")
    return own


def _plain(messages: Any) -> None:
    """Remove the JSON names that equal the default for their fields, because some compilers leave them out."""
    for one in messages:
        for field in one.field:
            if field.json_name == _json_name(field.name):
                field.ClearField("json_name")
        _plain(one.nested_type)


def _json_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _compiled(text: str, name: str, others: dict[str, FileDescriptorProto]) -> FileDescriptorProto:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    known = dict(others)
    _add_known(_KNOWN, known)
    with tempfile.TemporaryDirectory(prefix="parley-proto-") as place:
        folder = Path(place)
        (folder / NAME).write_text(text, encoding="utf-8")
        deps = FileDescriptorSet(file=[one for at, one in known.items() if at != NAME])
        (folder / "known").write_bytes(deps.SerializeToString())
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={folder}"]
        command += [f"--descriptor_set_in={folder / 'known'}", f"--descriptor_set_out={folder / 'made'}", NAME]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            raise BadSchema(f"Invalid Protobuf schema: protoc did not finish within {_SECONDS:g} s") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").replace(f"{folder}/", "").splitlines()
            errors = [line for line in lines if line.startswith(NAME)] or lines
            raise BadSchema(f"Invalid Protobuf schema: {'; '.join(errors)[:2000]}")
        found = FileDescriptorSet.FromString((folder / "made").read_bytes())
    return found.file[0]


def _add_known(names: Any, made: dict[str, FileDescriptorProto]) -> None:
    """Add the named files that come with the libraries, and the files that they import. Each file follows
    its imports.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    for name in names:
        if name in _KNOWN and name not in made:
            own = FileDescriptorProto.FromString(import_module(_KNOWN[name]).DESCRIPTOR.serialized_pb)
            _add_known(own.dependency, made)
            own.name = name
            made[name] = own


# --- The message of a value ---


def messages_of(schema: Schema, load: Loader) -> Any:
    """Return the schema's file, with the descriptors of its messages. Raises BadSchema."""
    files = files_of(schema, load)
    return pool_of(files).FindFileByName(files[-1].name)


def in_order(within: Any) -> list[Any]:
    """Return the messages of a file, or the messages nested in a message, in the order of the text."""
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

    if hasattr(within, "message_types_by_name"):
        file = FileDescriptorProto()
        within.CopyToProto(file)
        return [within.message_types_by_name[one.name] for one in file.message_type]
    message = DescriptorProto()
    within.CopyToProto(message)
    return [within.nested_types_by_name[one.name] for one in message.nested_type]


def is_map(field: Any) -> bool:
    """Return True if a field of a message is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def place_of(data: bytes, begin: int) -> tuple[tuple[int, ...], int]:
    """Decode the position of a message in its file. Returns it, and the position in ``data`` after it.

    The position is a list of indexes. A single 0 stands for the first message. Raises ValueError.
    """
    count, begin = _number(data, begin)
    if count == 0:
        return (0,), begin
    if not 0 < count <= _PLACE_MAX:
        raise ValueError("its message index is malformed")
    found = []
    for _ in range(count):
        one, begin = _number(data, begin)
        found.append(one)
    return tuple(found), begin


def _number(data: bytes, begin: int) -> tuple[int, int]:
    value = shift = 0
    while begin < len(data) and shift < 35:
        value |= (data[begin] & 0x7F) << shift
        begin, shift = begin + 1, shift + 7
        if data[begin - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), begin
    raise ValueError("its message index is malformed")


def message_at(file: Any, place: tuple[int, ...]) -> Any:
    """Return the descriptor of the message at a position in its file. Raises ValueError if there is none."""
    found = file
    for index in place:
        inside = in_order(found)
        if not 0 <= index < len(inside):
            raise ValueError("its schema has no message with this index")
        found = inside[index]
    return found
