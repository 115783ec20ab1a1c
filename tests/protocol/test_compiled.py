"""The compiled modules agree with their sources, and a stale module is never used."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parley import compiled
from parley.protocol.records import _walk
from tests.support.proportion import examples

ROOT = Path(__file__).parents[2]
MODULE = "parley.protocol.records._walk"
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
EDGES = st.sampled_from([0, -1, 1, 63, 64, -64, -65, 8191, 8192, 1 << 60, -(1 << 60), (1 << 63) - 1, -(1 << 63)])


def interpreted() -> ModuleType:
    """Return the module loaded from its source under another name."""
    name, source = "walk_from_source", str(compiled.source_of(MODULE))
    spec = importlib.util.spec_from_file_location(name, source, loader=SourceFileLoader(name, source))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOURCE = interpreted()
needs_compiled = pytest.mark.skipif(
    compiled.status()[MODULE] != "compiled", reason="nothing is compiled here (no C compiler at installation)"
)


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or the ValueError that it raises. Any other exception is a failure."""
    try:
        return call(*arguments)
    except ValueError as error:
        return f"ValueError: {error}"


def walked(module: ModuleType, data: bytes, pieces: list[int], count_max: int, base: int, consecutive: bool) -> Any:
    """Return the complete state of a walk over ``data`` fed in pieces of the given sizes."""
    walk = module.Walk(base, consecutive)
    seen = []
    pos = 0
    for size in [*pieces, len(data)]:
        used = outcome(walk.feed_piece, data, pos, min(pos + size, len(data)), count_max)
        seen.append((used, walk.missing))
        if isinstance(used, str):
            break
        pos = used
    return seen, pos == len(data) and not walk.missing, state(walk)


def state(walk: Any) -> tuple[int, ...]:
    """Return what a walk has found."""
    return walk.count, walk.last_delta, walk.max_timestamp, walk.min_timestamp, walk.first_null_key


content = st.none() | st.binary(max_size=40) | st.integers(60, 70).map(bytes) | st.just(bytes(9000))
record_headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(tuple)
records = st.lists(st.tuples(EDGES | st.integers(0, 100), EDGES | INT64, content, content, record_headers), max_size=8)


@st.composite
def record_bytes(draw: st.DrawFn) -> bytes:
    """Generate record bytes that are valid or almost valid."""
    encoded = outcome(SOURCE.encode_records, draw(records), draw(st.none() | EDGES), draw(EDGES | INT64))
    data = bytearray(b"" if isinstance(encoded, str) else encoded)
    for _ in range(draw(st.integers(0, 3))):
        if data:
            data[draw(st.integers(0, min(len(data) - 1, 60)))] = draw(
                st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)
            )
    cut = draw(st.integers(0, len(data)) | st.just(len(data)))
    return bytes(data[:cut])


anything = record_bytes() | st.binary(max_size=64) | st.lists(EDGES.map(SOURCE.varint), max_size=12).map(b"".join)


@needs_compiled
@given(records, st.none() | EDGES, EDGES | INT64)
def test_encoding_agrees(some: list[Any], base_offset: int | None, base_timestamp: int) -> None:
    arguments = (some, base_offset, base_timestamp)
    assert outcome(_walk.encode_records, *arguments) == outcome(SOURCE.encode_records, *arguments)


@needs_compiled
@settings(max_examples=examples(500))
@given(anything, st.lists(st.integers(0, 80), max_size=4), st.integers(0, 10), EDGES | INT64, st.booleans())
@example(b"\x80", [], 1, 0, True)
@example(b"\x14\x00\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x00", [], 1, -1, True)
@example(b"\x0e\x00\x00\xff\xff\xff\xff\x1f\x01\x01\x00", [], 1, 0, False)
def test_checking_agrees(data: bytes, pieces: list[int], count_max: int, base: int, consecutive: bool) -> None:
    arguments = (data, pieces, count_max, base, consecutive)
    assert walked(_walk, *arguments) == walked(SOURCE, *arguments)


@settings(max_examples=examples(500))
@given(
    anything,
    st.lists(st.integers(1, 80) | st.integers(1, 10_000), max_size=40),
    st.integers(0, 10),
    EDGES | INT64,
    st.booleans(),
)
def test_pieces_are_checked_like_the_whole(
    data: bytes, pieces: list[int], count_max: int, base: int, consecutive: bool
) -> None:
    """Large records are checked while their bytes pass."""
    whole = _walk.Walk(base, consecutive)
    is_sound = outcome(whole.feed, data, 0, len(data), count_max) == len(data)
    seen, is_complete, found = walked(_walk, data, pieces, count_max, base, consecutive)
    assert (is_complete and not isinstance(seen[-1][0], str)) == is_sound
    if is_sound:
        assert found == state(whole)


@needs_compiled
@settings(max_examples=examples(500))
@given(anything, st.integers(0, 10), EDGES | INT64, EDGES | INT64, st.none() | INT64)
def test_reading_agrees(data: bytes, count: int, base_offset: int, base_timestamp: int, fixed: int | None) -> None:
    def make(record: object, fields: object) -> object:
        return record, fields

    arguments = (data, 0, count, base_offset, base_timestamp, fixed, make, "record")
    assert outcome(_walk.read_records, *arguments) == outcome(SOURCE.read_records, *arguments)


@needs_compiled
@pytest.mark.parametrize("name", ["read_varint", "read_varlong"])
@given(st.binary(max_size=12) | EDGES.map(SOURCE.varint) | st.just(b"\xff" * 9 + b"\x01"), st.integers(0, 12))
def test_numbers_agree(name: str, data: bytes, end: int) -> None:
    arguments = (data, 0, min(end, len(data)))
    assert outcome(getattr(_walk, name), *arguments) == outcome(getattr(SOURCE, name), *arguments)


@given(INT64 | EDGES)
def test_numbers_come_back(value: int) -> None:
    encoded = _walk.varint(value)
    assert _walk.read_varlong(encoded, 0, len(encoded)) == (value, len(encoded))
    if -(1 << 31) <= value < 1 << 31:
        assert _walk.read_varint(encoded, 0, len(encoded)) == (value, len(encoded))


@given(INT32)
def test_longer_numbers_than_allowed_are_refused(value: int) -> None:
    longest = _walk.varint((1 << 40) + value)
    with pytest.raises(ValueError, match="32 bits"):
        _walk.read_varint(longest, 0, len(longest))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a copy of the installed package."""
    shutil.copytree(ROOT / "parley", tmp_path / "parley", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(package: Path, **environment: str) -> tuple[str, str]:
    """Return whether the copy's module runs compiled, and its standard error."""
    code = "import parley.compiled as c; print(c.__file__); print(c.status()['parley.protocol.records._walk'])"
    inherited = {name: value for name, value in os.environ.items() if name not in ("PARLEY_PURE", "PYTHONPATH")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=package, env=inherited | environment, capture_output=True, text=True, check=True)
    file, status = done.stdout.split()
    assert file.startswith(str(package))
    return status, done.stderr


@needs_compiled
def test_the_compiled_form_runs(package: Path) -> None:
    assert run(package) == ("compiled", "")


@pytest.mark.slow
@needs_compiled
def test_the_source_runs_on_demand(package: Path) -> None:
    assert run(package, PARLEY_PURE="1") == ("interpreted", "")
    assert run(package, PARLEY_PURE="0") == ("compiled", "")


@needs_compiled
def test_a_stale_module_is_not_used_and_a_warning_says_how_to_rebuild(package: Path) -> None:
    with (package / "parley/protocol/records/_walk.py").open("a") as source:
        source.write("\n# changed\n")
    status, said = run(package)
    assert status == "interpreted"
    assert "StaleModuleWarning" in said
    assert MODULE in said
    assert "make build" in said


@needs_compiled
def test_with_a_stale_module_the_others_run_from_their_sources_too(package: Path) -> None:
    """They would call the stale module's compiled form, which was never imported."""
    with (package / "parley/protocol/records/batch_header.py").open("a") as source:
        source.write("\n# changed\n")
    status, said = run(package)
    assert status == "interpreted"
    assert MODULE not in said
    assert "parley.protocol.records.batch_header" in said


def test_nothing_compiled_is_no_fault(package: Path) -> None:
    (package / "parley/_built.json").unlink(missing_ok=True)
    for suffix in EXTENSION_SUFFIXES:
        for extension in package.rglob(f"*{suffix}"):
            extension.unlink()
    assert run(package) == ("interpreted", "")
