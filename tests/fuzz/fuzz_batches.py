"""Coverage-guided fuzzing of record batches and old messages. It is run by hand, and ends only if it finds something.

``pip install -e '.[fuzz]'``, then ``python -m tests.fuzz.fuzz_batches [corpus folder] [libFuzzer options]``, as in
``-max_total_time=600``. The byte-walking module runs from its source, so that the fuzzer sees its branches; the
compiled form, if there is one, must behave the same. Without a corpus the fuzzer begins with a batch of each kind.

An input is what to do with it (one byte), a version of the produce request and a target codec (one byte), and bytes:

* a batch or message set as it is, or with its checksum corrected;
* the record bytes of a batch with a valid header, uncompressed or compressed by the fuzzer.

The fuzzer looks for any exception other than KafkaError, a batch that passes the checks of produce and then cannot be
read or disagrees with itself, and more memory than the limits allow.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import atheris

os.environ["PARLEY_PURE"] = "1"

with atheris.instrument_imports():
    from parley import compiled
    from parley.protocol.errors import KafkaError
    from parley.protocol.records import _walk, legacy
    from parley.protocol.records.batch import assemble, build, records, validate
    from parley.protocol.records.batch_header import HEADER_SIZE, headers, read_header
    from parley.protocol.records.compression import Compression, compress
    from parley.protocol.records.control_batch import read_marker
    from parley.protocol.records.crc import seal
    from parley.protocol.records.down_conversion import to_legacy
    from parley.protocol.records.produce_validation import ProduceRules, prepare
    from parley.protocol.records.record import Record

NOW = 1_700_000_000_000
LIMIT = 1 << 20
MEMORY_BYTES_MAX = 1 << 30


def compiled_walk() -> ModuleType | None:
    """Return the compiled form of the byte-walking module, if it is installed."""
    source = compiled.source_of("parley.protocol.records._walk")
    if compiled.built_digests():
        for file in source.parent.glob(f"{source.stem}.*.so"):
            spec = importlib.util.spec_from_file_location("parley.protocol.records._walk", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return None


COMPILED = compiled_walk()


def produced(data: bytes | bytearray, version: int, target: Compression | None) -> None:
    rules = ProduceRules(max_message_bytes=LIMIT, decompressed_bytes_max=LIMIT, compression=target)
    try:
        ready = prepare(bytearray(data), rules, now_ms=NOW, version=version)
    except KafkaError:
        return
    header = read_header(ready.batches)
    validate(ready.batches, 0, header, consecutive=True)
    found = list(records(ready.batches))
    if len(found) != ready.header.record_count or header.size_bytes != len(ready.batches):
        raise AssertionError(f"{header} does not hold what was prepared")
    for magic in (0, 1):
        try:
            converted = b"".join(to_legacy(ready.batches, magic))
        except KafkaError:
            continue
        again = [record for pos, _ in headers(converted) for record in records(converted, pos)]
        if [record[2:4] for record in again] != [record[2:4] for record in found]:
            raise AssertionError(f"{header} changes for clients of magic {magic}")


def stored(data: bytes | bytearray) -> None:
    """What a log does with the bytes that it finds on disk."""
    try:
        for pos, header in headers(data):
            validate(data, pos, header, max_bytes=LIMIT)
            list(records(data, pos, max_bytes=LIMIT))
            if header.is_control:
                read_marker(data, pos)
    except KafkaError:
        pass


def walked(module: Any, body: bytes, count: int, consecutive: bool) -> object:
    walk = module.Walk(NOW, consecutive)
    try:
        used = walk.feed(body, 0, len(body), count)
        read = module.read_records(body, 0, walk.count, 0, NOW, None, lambda record, fields: fields, None)
    except ValueError as error:
        return str(error), walk.count
    return used, read, walk.count, walk.last_delta, walk.max_timestamp, walk.min_timestamp, walk.first_null_key


def with_right_checksums(data: bytes) -> bytearray:
    fixed = bytearray(data)
    pos = 0
    while len(fixed) - pos >= HEADER_SIZE:
        size = 12 + int.from_bytes(fixed[pos + 8 : pos + 12], "big", signed=True)
        if not HEADER_SIZE <= size <= len(fixed) - pos:
            break
        if fixed[pos + 16] == 2:
            seal(fixed, pos, size)
        else:
            struct.pack_into(">I", fixed, pos + 12, zlib.crc32(memoryview(fixed)[pos + 16 : pos + size]))
        pos += size
    return fixed


def one_input(data: bytes) -> None:
    if len(data) < 3:
        return
    action, options, rest = data[0], data[1], data[2:]
    version, target = options % 14, [None, *Compression][(options >> 4) % 6]
    if action & 1:
        count, codec = action >> 4, Compression((action >> 1 & 7) % 5)
        if COMPILED is not None:
            ours, theirs = (walked(module, rest, count, True) for module in (_walk, COMPILED))
            if ours != theirs:
                raise AssertionError(f"interpreted {ours}, compiled {theirs}")
        body = compress(codec, rest)
        empty = read_header(build([], compression=codec))
        header = empty._replace(length=HEADER_SIZE - 12 + len(body), record_count=count, last_offset_delta=count - 1)
        rest = bytes(assemble(header, body))
    elif action & 2:
        rest = bytes(with_right_checksums(rest))
    produced(rest, version, target)
    stored(rest)
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 > MEMORY_BYTES_MAX:
        raise AssertionError("more memory than the limits allow")


def seeds(folder: Path) -> None:
    """A batch or message set of each magic and codec."""
    some = [Record(i, NOW + i, b"key" if i else None, b"value" * i, (("name", b"content"),)) for i in range(3)]
    for codec in Compression:
        (folder / f"v2-{codec.name}").write_bytes(b"\x02\x09" + build(some, compression=codec))
        (folder / f"records-{codec.name}").write_bytes(bytes((3 << 4 | codec << 1 | 1, 9)) + build(some)[HEADER_SIZE:])
        for magic in (0, 1):
            if codec is not Compression.ZSTD:
                old = legacy.build(some, magic, compression=codec)
                (folder / f"v{magic}-{codec.name}").write_bytes(b"\x02\x02" + old)


if __name__ == "__main__":
    arguments = sys.argv
    with tempfile.TemporaryDirectory() as temporary:
        if not any(not argument.startswith("-") for argument in arguments[1:]):
            seeds(Path(temporary))
            arguments = [*arguments, temporary]
        atheris.Setup(arguments, one_input)
        atheris.Fuzz()
