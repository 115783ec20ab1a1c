"""Coverage-guided fuzzing of everything a client can send before it has logged in. Ends only if it finds something.

``pip install -e '.[fuzz,security]'``, then ``python -m tests.fuzz.fuzz_logins [corpus folder] [libFuzzer options]``, as
in ``-max_total_time=600``. An input is a list of frames, each with a length of two bytes, or one byte that chooses a
proper frame. The fuzzer looks for any exception other than a refusal, and for a client that is logged in without an
account.
"""

from __future__ import annotations

import asyncio
import sys

import atheris

with atheris.instrument_imports():
    from parley.broker.security.sasl.login import LoginState
    from tests.broker.security.sasl.strangers import proper_frames, send

FRAMES_MAX = 8


def frames(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    while len(data) > 2 and len(found) < FRAMES_MAX:
        if data[0] < 0x80:
            proper = proper_frames()
            found.append(proper[data[0] % len(proper)])
            data = data[1:]
        else:
            size = int.from_bytes(data[:2], "big") & 0x7FFF
            found.append(data[2 : 2 + size])
            data = data[2 + size :]
    return found


def one_input(data: bytes) -> None:
    if asyncio.run(send(frames(data))) is LoginState.COMPLETE:
        raise AssertionError("a stranger is logged in")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
