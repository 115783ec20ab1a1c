"""Coverage-guided fuzzing of request frames and message decoders. It is run by hand, and ends only if it finds
something.

``pip install -e '.[fuzz]'``, then ``python -m tests.fuzz.fuzz_messages [corpus folder] [libFuzzer options]``, as in
``-max_total_time=600``. An input is an API (one byte), a version, request or response (one bit) and a message; the
fuzzer looks for any exception other than MalformedMessage, and for a message that changes when it is encoded and
decoded.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports():
    from parley.protocol.codec import decode, encode
    from parley.protocol.connection import FrameReader, FrameTooLarge, parse_request_header
    from parley.protocol.errors import MalformedMessage
    from parley.protocol.messages import APIS

KEYS = sorted(APIS)


def messages(data: bytes) -> None:
    api = APIS[KEYS[data[0] % len(KEYS)]]
    message = api.response if data[1] & 1 else api.request
    version = message.VERSIONS.min + (data[1] >> 1) % (message.VERSIONS.max - message.VERSIONS.min + 1)
    try:
        found = decode(message, version, data[2:])
    except MalformedMessage:
        return
    encoded = encode(found, version)
    if encode(decode(message, version, encoded), version) != encoded:
        raise AssertionError(f"{message.__name__} v{version} changes: {found}")


def frames(data: bytes) -> None:
    reader = FrameReader(1 << 20)
    try:
        while data:
            room = reader.get_buffer()
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            for frame in reader.buffer_updated(size):
                parse_request_header(frame)
    except (FrameTooLarge, MalformedMessage):
        return


def one_input(data: bytes) -> None:
    frames(data)
    if len(data) > 2:
        messages(data)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
