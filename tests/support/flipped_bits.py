"""A file of which one bit is altered, for each of its bits."""

from __future__ import annotations

from collections.abc import Iterator


def each_bit_flipped(written: bytes) -> Iterator[bytes]:
    """Yield copies of the bytes with one bit flipped in each."""
    for bit in range(8 * len(written)):
        altered = bytearray(written)
        altered[bit // 8] ^= 1 << bit % 8
        yield bytes(altered)
