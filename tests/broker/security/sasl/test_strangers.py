"""Arbitrary bytes before a login lead only to a refusal."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from parley.broker.security.sasl.login import LoginState
from tests.broker.security.sasl.strangers import proper_frames, send
from tests.support.proportion import examples


@st.composite
def _changed(draw: st.DrawFn) -> bytes:
    """Return a proper frame with some bytes replaced, cut off or inserted."""
    frame = bytearray(draw(st.sampled_from(proper_frames())))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(frame) - 1)))
        match draw(st.integers(0, 2)):
            case 0:
                frame[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                del frame[at:]
            case _:
                frame[at:at] = draw(st.binary(max_size=20))
    return bytes(frame)


@settings(max_examples=examples(400))
@given(st.lists(st.one_of(st.sampled_from(proper_frames()), _changed(), st.binary(max_size=60)), max_size=6))
def test_no_sequence_of_frames_logs_a_stranger_in(frames: list[bytes]) -> None:
    assert asyncio.run(send(frames)) is not LoginState.COMPLETE
