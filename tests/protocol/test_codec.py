"""The compiled codecs: round trips of every message, and bytes that are not a message."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parley.protocol.codec import (
    EncodedArray,
    decode,
    decode_from,
    decode_stored,
    encode,
    encode_element,
    encode_frame_parts,
    encode_stored,
    request_frame,
    response_frame,
)
from parley.protocol.decoding import ELEMENTS_MAX, REQUEST_ELEMENTS_MAX, STRING_BYTES_MAX
from parley.protocol.encoding import ERROR_TEXT_CUT
from parley.protocol.errors import MalformedMessage, TooManyElements
from parley.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.messages.headers import RequestHeader, ResponseHeader
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.sasl import SaslHandshakeRequest
from parley.protocol.messages.streams_groups import StreamsGroupHeartbeatResponse
from parley.protocol.messages.topics import CreateTopicsResponse
from parley.protocol.schema import Data, Message, Request, Struct, field, i16, i32
from parley.protocol.uuids import UUID
from tests.protocol.message_strategies import messages
from tests.protocol.test_messages import MESSAGES
from tests.support.proportion import examples

few = settings(max_examples=examples(8), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
"""Yield a few instances of each message in all its versions."""


class Example(Data, versions="0-3", flexible="2+"):
    """One field of each kind that can fail."""

    class Inner(Struct):
        """A nested struct."""

        number: i16 = 0

    name: str
    note: str | None = field("1+", nullable="2+", default="")
    count: i32 = field("1+", default=7, ignorable=True)
    numbers: list[i32] = field(default=[])
    inner: Example.Inner | None = field("1+", default=None)
    extra: str = field("2+", tag=3, tagged="2+", default="usual")


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
@few
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_round_trip_and_damage(message: type[Message], data: st.DataObject, seed: int) -> None:
    """A message survives the round trip. Decoding a damaged message at worst raises MalformedMessage."""
    for version in message.VERSIONS:
        original = data.draw(messages(message, version), label=f"version {version}")
        encoded = encode(original, version)
        assert decode(message, version, encoded) == original
        assert b"".join(encode_frame_parts(original, version)) == encoded
        assert decode_from(message, version, b"--" + encoded + b"more", 2) == (original, len(encoded) + 2)
        damage(message, version, encoded, random.Random(seed))


def damage(message: type[Message], version: int, encoded: bytes, rng: random.Random) -> None:
    for cut in {rng.randrange(len(encoded)) for _ in range(8)} if encoded else ():
        with pytest.raises(MalformedMessage):
            decode(message, version, encoded[:cut])
    with pytest.raises(MalformedMessage):
        decode(message, version, encoded + b"\0")
    for _ in range(8):
        damaged = bytearray(encoded)
        for _ in range(rng.randint(1, 4)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        unharmed(message, version, bytes(damaged))
    unharmed(message, version, rng.randbytes(rng.randrange(64)))


def unharmed(message: type[Message], version: int, data: bytes) -> None:
    """Decode the bytes; if that succeeds, encoding and decoding again must give the same message."""
    try:
        found = decode(message, version, data)
    except MalformedMessage:
        return
    again = encode(found, version)
    assert encode(decode(message, version, again), version) == again


@pytest.mark.parametrize("count", [2**31 - 1, 2**24, 3, -2])
@pytest.mark.parametrize("view", [bytes, bytearray, memoryview])
def test_counts_beyond_the_message_are_refused(count: int, view: type[Any]) -> None:
    with pytest.raises(MalformedMessage, match="topics"):
        decode(MetadataRequest, 1, view(struct.pack(">i", count) + b"\0\0\0\0"))


def test_compact_counts_beyond_the_message_are_refused() -> None:
    for count in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80\x80\x40", b"\x05"):
        with pytest.raises(MalformedMessage, match="topics"):
            decode(MetadataRequest, 9, count + b"\0\0\0\0")
    for too_long in (b"\xff\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x80\x01"):
        with pytest.raises(MalformedMessage, match="varint"):
            decode(MetadataRequest, 9, too_long + b"\0\0\0\0")


def test_elements_of_a_message_are_limited() -> None:
    """The bytes are complete, but the objects would be many times as large."""
    topics = REQUEST_ELEMENTS_MAX + 1
    with pytest.raises(TooManyElements, match="topics"):
        decode(MetadataRequest, 1, struct.pack(">i", topics) + bytes(2 * topics))
    with pytest.raises(TooManyElements, match="topics"):
        decode_from(MetadataRequest, 1, struct.pack(">i", 3) + bytes(6), 0, 2)
    half = ELEMENTS_MAX // 2
    numbers = struct.pack(">i", half) + bytes(4 * half)
    assert len(decode(Example, 0, b"\0\0" + numbers).numbers) == half
    with pytest.raises(MalformedMessage, match="tagged section"):
        decode(Example, 2, encode(Example(name="a", numbers=[1]), 2)[:-1] + b"\x80\x80\x80\x01")


def test_text_must_be_utf8() -> None:
    with pytest.raises(MalformedMessage, match="UTF-8"):
        decode(SaslHandshakeRequest, 0, b"\0\2\xc3\x28")
    with pytest.raises(ValueError, match=r"SaslHandshakeRequest v0: mechanism cannot be written as UTF-8"):
        encode(SaslHandshakeRequest(mechanism="\ud800"), 0)


def test_text_is_at_most_32767_bytes_in_every_version() -> None:
    for version in (0, 2):
        with pytest.raises(ValueError, match=rf"Example v{version}: name is longer than 32767 bytes"):
            encode(Example(name="x" * 32768), version)
    with pytest.raises(MalformedMessage, match="name"):
        decode(Example, 2, b"\x81\x80\x02" + b"x" * 32768 + b"\0\0\0\0\0")


def test_error_texts_are_cut_instead_of_refused() -> None:
    """An error text that lists names from the request may be too long, but the client must still get its response."""
    make = CreateTopicsResponse.CreatableTopicResult
    usual, long = "x" * STRING_BYTES_MAX, "\u20ac" * (STRING_BYTES_MAX // 3 + 1)
    response = CreateTopicsResponse(
        topics=[make(name="t", error_code=42, error_message=text) for text in (None, usual, long)]
    )
    for version in (1, CreateTopicsResponse.VERSIONS.max):
        topics = decode(CreateTopicsResponse, version, encode(response, version)).topics
        assert [topic.error_message for topic in topics] == [None, usual, long[:ERROR_TEXT_CUT] + " ..."]
    detail = StreamsGroupHeartbeatResponse.Status(status_code=1, status_detail=long)
    heartbeat = StreamsGroupHeartbeatResponse.blank()
    heartbeat.status, heartbeat.error_message = [detail], long
    again = decode(StreamsGroupHeartbeatResponse, 0, encode(heartbeat, 0))
    assert again.status is not None
    assert again.status[0].status_detail == again.error_message == long[:ERROR_TEXT_CUT] + " ..."
    response.topics[2].name = long
    with pytest.raises(ValueError, match=r"topics\[2\]\.name is longer"):
        encode(response, 7)
    response.topics[2].name, response.topics[2].error_message = "t", b"text"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="error_message is a bytes"):
        encode(response, 7)


def test_null_where_there_must_be_a_value() -> None:
    with pytest.raises(MalformedMessage, match="mechanism must not be null"):
        decode(SaslHandshakeRequest, 0, b"\xff\xff")
    with pytest.raises(ValueError, match="Example v1: note must not be null"):
        encode(Example(name="", note=None), 1)
    assert decode(Example, 2, encode(Example(name="", note=None), 2)).note is None


def test_a_value_the_version_lacks_is_refused_unless_ignorable() -> None:
    assert decode(Example, 0, encode(Example(name="a", count=9), 0)).count == 7
    with pytest.raises(ValueError, match="Example v0: note has a value, 'b'"):
        encode(Example(name="a", note="b"), 0)
    with pytest.raises(ValueError, match="Example v1: extra has a value"):
        encode(Example(name="a", extra="b"), 1)


def test_an_encoding_error_names_the_field() -> None:
    wrong: list[tuple[Example, str]] = [
        (Example(name="a", numbers=[1, 2**31]), r"numbers\[1\] is 2147483648, out of the range of i32"),
        (Example(name="a", inner=Example.Inner(number=40000)), r"inner\.number is 40000"),
        (Example(name=b"a"), "name is a bytes, not str"),  # type: ignore[arg-type]
        (Example(name="a", numbers=None), "numbers must not be null"),  # type: ignore[arg-type]
        (Example(name="a", unknown_tags=((3, b"x"),)), "unknown_tags contains a tag twice"),
    ]
    for message, text in wrong:
        message.extra = "not the usual"
        with pytest.raises(ValueError, match=f"Example v3: {text}"):
            encode(message, 3)


def test_versions_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="Example has versions 0-3, not 4"):
        encode(Example(name=""), 4)
    with pytest.raises(ValueError, match="not -1"):
        decode(Example, -1, b"")


def test_tagged_fields_are_on_the_wire_only_when_they_say_something() -> None:
    short, long = encode(Example(name="a"), 2), encode(Example(name="a", extra="b"), 2)
    assert short.endswith(b"\0")
    assert long == short[:-1] + b"\x01\x03\x02\x02b"


def test_unknown_tags_are_kept_in_order() -> None:
    original = Example(name="a", extra="b", unknown_tags=((1, b"one"), (300, b"")))
    encoded = encode(original, 2)
    assert encoded.endswith(b"\x03\x01\x03one\x03\x02\x02b\xac\x02\x00")
    assert decode(Example, 2, encoded) == original
    with pytest.raises(ValueError, match="unknown_tags must be empty"):
        encode(Example(name="a", unknown_tags=((1, b"one"),)), 1)


@pytest.mark.parametrize(
    "section",
    [
        pytest.param(b"\x02\x05\x01a\x05\x01a", id="the same tag twice"),
        pytest.param(b"\x02\x05\x01a\x04\x01a", id="falling tags"),
        pytest.param(b"\x01\x05\x09a", id="longer than the message"),
        pytest.param(b"\x01\x03\x03\x02b!", id="a known tag that leaves bytes over"),
        pytest.param(b"\x01\x03\x01\x02b", id="a known tag that reads beyond its end"),
        pytest.param(b"\xff\xff\xff\xff\x0f", id="four billion tags"),
    ],
)
def test_bad_tagged_sections(section: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(Example, 2, encode(Example(name="a"), 2)[:-1] + section)


def test_records_are_not_copied() -> None:
    records = bytes(5000)
    request = ProduceRequest(
        acks=1,
        timeout_ms=1,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t", partition_data=[ProduceRequest.PartitionProduceData(index=0, records=records)]
            )
        ],
    )
    parts = encode_frame_parts(request, 9)
    assert any(part is records for part in parts)
    frame = bytearray(b"".join(parts))
    found = decode(ProduceRequest, 9, memoryview(frame)).topic_data[0].partition_data[0].records
    assert isinstance(found, memoryview)
    assert found.obj is frame
    found[0] = 7
    assert frame.count(7) == 1


def fetch_response(records: Any) -> FetchResponse:
    partition = FetchResponse.PartitionData(
        partition_index=0, high_watermark=1, aborted_transactions=None, records=records
    )
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])])


@pytest.mark.parametrize("sizes", [[], [0], [3, 4], [1000, 1000], [5000], [1, 0, 9000]])
@pytest.mark.parametrize("version", [4, 12])
def test_records_in_several_buffers(sizes: list[int], version: int) -> None:
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    given_pieces = [piece if number % 2 else memoryview(piece) for number, piece in enumerate(pieces)]
    parts = response_frame(fetch_response(given_pieces), version, 77)
    frame = b"".join(parts)
    assert frame == b"".join(response_frame(fetch_response(b"".join(pieces)), version, 77))
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 77)
    decoded = decode(FetchResponse, version, frame, 9 if version == 12 else 8)
    assert decoded.responses[0].partitions[0].records == b"".join(pieces)


def test_a_shared_default_cannot_be_changed() -> None:
    partition = fetch_response(b"").responses[0].partitions[0]
    with pytest.raises(AttributeError, match="LeaderIdAndEpoch is a field's default"):
        partition.current_leader.leader_id = 5
    partition.current_leader = FetchResponse.LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)
    assert partition == fetch_response(b"").responses[0].partitions[0]
    copied = partition.current_leader.copy()
    copied.leader_id = 5
    assert copied != partition.current_leader


@pytest.mark.parametrize(
    ("request_class", "version", "request_header", "response_header"),
    [
        (MetadataRequest, 8, 1, 0),
        (MetadataRequest, 9, 2, 1),
        (ApiVersionsRequest, 2, 1, 0),
        (ApiVersionsRequest, 3, 2, 0),  # KIP-511
        (ApiVersionsRequest, 4, 2, 0),
        (SaslHandshakeRequest, 1, 1, 0),
        (FetchRequest, 17, 2, 1),
    ],
)
def test_header_versions(request_class: type[Request], version: int, request_header: int, response_header: int) -> None:
    response_class: Any = MESSAGES[request_class.__name__.replace("Request", "Response")]
    assert request_class.header_version(version) == request_header
    assert response_class.header_version(version) == response_header


def test_frames_begin_with_size_and_header() -> None:
    frame = b"".join(request_frame(MetadataRequest(topics=[]), 9, 5, "me"))
    header, pos = decode_from(RequestHeader, 2, frame, 4)
    assert header == RequestHeader(request_api_key=3, request_api_version=9, correlation_id=5, client_id="me")
    assert decode(MetadataRequest, 9, frame, pos) == MetadataRequest(topics=[])
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)

    answer = MetadataResponse(brokers=[], topics=[])
    frame = b"".join(response_frame(answer, 9, 5))
    assert decode_from(ResponseHeader, 1, frame, 4) == (ResponseHeader(correlation_id=5), 9)
    assert decode(MetadataResponse, 9, frame, 9) == answer
    frame = b"".join(response_frame(ApiVersionsResponse(api_keys=[]), 3, 5))
    assert decode(ApiVersionsResponse, 3, frame, 8) == ApiVersionsResponse(api_keys=[])


def test_stored_messages_begin_with_their_version() -> None:
    original = Example(name="key", unknown_tags=((9, b"kept"),))
    stored = encode_stored(original, 2)
    assert stored[:2] == b"\0\2"
    assert decode_stored(Example, stored) == (original, 2)
    for bad in (b"", b"\0", b"\0\x09" + stored[2:], b"\xff\xff" + stored[2:]):
        with pytest.raises(MalformedMessage):
            decode_stored(Example, bad)


def test_uuids_survive_the_cache() -> None:
    topic = MetadataRequest.MetadataRequestTopic
    ids = [UUID(int=number) for number in range(5000)]
    request = MetadataRequest(topics=[topic(topic_id=topic_id, name=None) for topic_id in ids])
    for _ in range(2):
        decoded = decode(MetadataRequest, 12, encode(request, 12))
        assert decoded.topics is not None
        assert [one.topic_id for one in decoded.topics] == ids


def topics_of_metadata() -> list[MetadataResponse.MetadataResponseTopic]:
    partition = MetadataResponse.MetadataResponsePartition(
        partition_index=0, leader_id=1, replica_nodes=[1, 2], isr_nodes=[1]
    )
    return [MetadataResponse.MetadataResponseTopic(name=name, partitions=[partition] * 200) for name in ("a", "b")]


@pytest.mark.parametrize("version", list(MetadataResponse.VERSIONS))
def test_elements_that_are_encoded_ahead_are_the_same_bytes(version: int) -> None:
    plain = MetadataResponse(brokers=[], cluster_id="c", topics=topics_of_metadata())
    ahead = plain.copy()
    elements = [encode_element(MetadataResponse, version, topic) for topic in plain.topics]
    ahead.topics = EncodedArray(version, elements)  # type: ignore[assignment]
    assert encode(ahead, version) == encode(plain, version)
    assert response_frame(ahead, version, 1) == response_frame(plain, version, 1)


def test_elements_that_are_encoded_ahead_belong_to_one_version() -> None:
    elements = [encode_element(MetadataResponse, 12, topic) for topic in topics_of_metadata()]
    response = MetadataResponse(brokers=[], topics=[])
    response.topics = EncodedArray(12, elements)  # type: ignore[assignment]
    with pytest.raises(ValueError, match="elements encoded for version 12 cannot be sent in version 9"):
        encode(response, 9)


def test_an_element_that_cannot_be_encoded_names_the_field() -> None:
    topic = MetadataResponse.MetadataResponseTopic(name=None, partitions=[])
    with pytest.raises(ValueError, match="MetadataResponseTopic v9: name must not be null"):
        encode_element(MetadataResponse, 9, topic)
    with pytest.raises(ValueError, match="has versions 0-13, not 14"):
        encode_element(MetadataResponse, 14, topic)
