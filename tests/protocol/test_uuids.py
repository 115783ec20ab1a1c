"""Clients choose topic ids, but cannot predict their hashes."""

from __future__ import annotations

import copy
import pickle
import re
import uuid
from pathlib import Path

import parley.protocol
from parley.protocol.codec import decode, encode
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.schema import ZERO_UUID
from parley.protocol.uuids import UUID

PRIME = (1 << 61) - 1  # Python's integers hash modulo this number
COLLIDING = [uuid.UUID(int=12345 + k * PRIME) for k in range(7, 2007)]


def test_decoded_ids_that_would_collide_have_hashes_of_their_own() -> None:
    assert len(set(map(hash, COLLIDING))) == 1
    named = [MetadataRequest.MetadataRequestTopic(topic_id=UUID(int=each.int), name=None) for each in COLLIDING]
    data = encode(MetadataRequest(topics=named), 12)
    received = decode(MetadataRequest, 12, data).topics
    assert received is not None
    assert [each.topic_id for each in received] == COLLIDING
    assert len({hash(each.topic_id) for each in received}) > 1990


def test_equal_ids_are_equal_keys_wherever_they_were_made() -> None:
    one = UUID(int=PRIME + 5)
    twins = (UUID(bytes=one.bytes), UUID(str(one)), copy.deepcopy(one), pickle.loads(pickle.dumps(one)))
    assert {hash(each) for each in (*twins, one)} == {hash(one)}
    assert all({one: 1}[each] == 1 for each in twins)
    assert one == uuid.UUID(int=PRIME + 5)
    assert isinstance(ZERO_UUID, UUID)


def test_no_module_below_the_tools_makes_other_uuids() -> None:
    root = Path(parley.protocol.__file__).parent.parent
    files = [file for room in ("protocol", "storage", "broker") for file in (root / room).rglob("*.py")]
    makers = [file.name for file in files if re.search(r"^\s*(import|from) uuid\b", file.read_text(), re.MULTILINE)]
    assert makers == ["uuids.py"]
