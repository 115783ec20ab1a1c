"""The values to send: random bytes of one size, random lines of a file, or increasing numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from parley.tools.cli.invocation import CommandError

_SEED = 0
"""The seed. All runs send the same bytes, so that they can be compared."""


def payloads(
    record_size: int | None, payload_file: Path | None, delimiter: str, monotonic: bool, random: Random | None = None
) -> Iterator[bytes]:
    """Return an endless iterator of values.

    Raises ``CommandError`` unless exactly one kind of values is selected, or if the file cannot be used.
    """
    random = random or Random(_SEED)
    if (record_size is not None) + (payload_file is not None) + monotonic != 1:
        raise CommandError("Name exactly one of --record-size, --payload-file and --payload-monotonic.")
    if record_size is not None:
        if record_size < 1:
            raise CommandError(f"--record-size must be 1 or more, not {record_size}.")
        return _constant(bytes(random.choices(range(65, 91), k=record_size)))
    if payload_file is not None:
        return _from_file(payload_file, delimiter, random)
    return _rising()


def _constant(value: bytes) -> Iterator[bytes]:
    while True:
        yield value


def _from_file(path: Path, delimiter: str, random: Random) -> Iterator[bytes]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CommandError(f"The file {path} cannot be read: {error.strerror}.") from error
    parts = data.split(delimiter.encode().decode("unicode_escape").encode())
    values = parts[:-1] if parts and not parts[-1] else parts
    if not values:
        raise CommandError(f"The file {path} is empty.")
    return _at_random(values, random)


def _at_random(values: list[bytes], random: Random) -> Iterator[bytes]:
    while True:
        yield random.choice(values)


def _rising() -> Iterator[bytes]:
    number = 0
    while True:
        yield str(number).encode()
        number += 1
