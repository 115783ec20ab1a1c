"""Apache Kafka's own record classes as the reference: they read what we write, and we read what they write."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from parley.protocol.records import legacy
from parley.protocol.records.batch import build, records, validate
from parley.protocol.records.batch_header import headers
from parley.protocol.records.compression import Compression
from parley.protocol.records.down_conversion import to_legacy
from parley.protocol.records.record import Record
from tests.support.kafka import KAFKA_3, run_java

pytestmark = pytest.mark.system

JUDGE = Path(__file__).with_name("KafkaRecords.java")


def some_records(seed: int, magic: int) -> list[Record]:
    """Return records of all shapes, one of them large enough for several blocks of any codec."""
    draw = random.Random(seed)
    found = []
    for offset in range(draw.choice([1, 2, 70])):
        timestamp = -1 if magic == 0 else draw.choice([0, 1_700_000_000_000 + draw.randrange(-5000, 5000)])
        key, value = (draw.choice([None, b"", draw.randbytes(draw.randrange(80))]) for _ in range(2))
        named = [
            (draw.choice(["", "name", "größe"]), draw.choice([None, b"", b"content"])) for _ in range(draw.randrange(3))
        ]
        found.append(Record(100 + offset, timestamp, key, value, tuple(named) if magic == 2 else ()))
    return [*found, found[-1]._replace(offset=100 + len(found), value=draw.randbytes(1000) * 300)]


def as_text(some: list[Record]) -> str:
    def hexed(content: bytes | None) -> str:
        return "-" if content is None else content.hex()

    return ";".join(
        ",".join(
            [
                str(record.offset),
                str(record.timestamp),
                hexed(record.key),
                hexed(record.value),
                *(part for name, content in record.headers for part in (name.encode().hex(), hexed(content))),
            ]
        )
        for record in some
    )


CASES = [
    (magic, codec, some_records(seed, magic))
    for seed, (magic, codec) in enumerate(
        (magic, codec)
        for magic in (0, 1, 2)
        for codec in Compression
        for _ in range(3)
        if magic == 2 or codec is not Compression.ZSTD
    )
]


def judged(lines: list[str]) -> list[str]:
    answers = run_java(str(JUDGE), version=KAFKA_3, stdin="".join(f"{line}\n" for line in lines)).splitlines()
    assert len(answers) == len(lines)
    assert [answer for answer in answers if answer.startswith("!")] == []
    return answers


@pytest.fixture(scope="module")
def written_by_kafka() -> list[bytes]:
    lines = [f"write\t{magic}\t{codec.name.lower()}\t{as_text(some)}" for magic, codec, some in CASES]
    return [bytes.fromhex(answer) for answer in judged(lines)]


def test_kafka_reads_what_we_write() -> None:
    lines = []
    for magic, codec, some in CASES:
        if magic == 2:
            data = build(some, base_offset=100, compression=codec)
        else:
            data = legacy.build(some, magic, compression=codec)
        lines.append(f"read\t{data.hex()}")
    for (magic, codec, some), answer in zip(CASES, judged(lines), strict=True):
        assert answer == as_text(some), (magic, codec)


def test_kafka_reads_batches_that_we_converted_for_old_clients() -> None:
    lines, expected = [], []
    for magic in (0, 1):
        for _, codec, some in CASES:
            if codec is Compression.ZSTD:
                continue
            converted = to_legacy(build(some, base_offset=100, compression=codec), magic)
            lines.append(f"read\t{b''.join(converted).hex()}")
            expected.append(
                as_text([r._replace(headers=(), timestamp=-1 if magic == 0 else r.timestamp) for r in some])
            )
    assert judged(lines) == expected


def test_we_read_what_kafka_writes(written_by_kafka: list[bytes]) -> None:
    for (magic, codec, some), data in zip(CASES, written_by_kafka, strict=True):
        found: list[Record] = []
        for pos, header in headers(data):
            assert header.magic == magic
            assert header.compression is codec
            validate(data, pos, header, consecutive=magic == 2)
            found.extend(records(data, pos))
        assert found == some


def test_uncompressed_bytes_are_the_same(written_by_kafka: list[bytes]) -> None:
    for (magic, codec, some), data in zip(CASES, written_by_kafka, strict=True):
        if codec is not Compression.NONE:
            continue
        ours = build(some, base_offset=100) if magic == 2 else legacy.build(some, magic)
        assert ours == data
