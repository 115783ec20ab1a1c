"""Frames, request headers and the matching of responses."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.protocol.codec import request_frame, response_frame
from parley.protocol.connection import ClientConnection, FrameReader, FrameTooLarge, RequestHeader, parse_request_header
from parley.protocol.errors import ErrorCode, MalformedMessage
from parley.protocol.messages import APIS
from parley.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.messages.produce import ProduceRequest
from tests.support.proportion import examples

LIMIT = 8 * 1024 * 1024


def framed(*contents: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(content)) + content for content in contents)


def feed(reader: Any, data: bytes, step: int = 2**30) -> list[Any]:
    """Hand data to a reader as a transport would, at most `step` bytes at a time."""
    found = []
    pos = 0
    while pos < len(data):
        room = reader.get_buffer(65536)
        size = min(len(room), step, len(data) - pos)
        assert size > 0
        room[:size] = data[pos : pos + size]
        del room
        found += reader.buffer_updated(size)
        pos += size
    return found


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.lists(
        st.one_of(st.integers(0, 300), st.sampled_from([4092, 4096, 131068, 131072, 131073, 300_000])), max_size=8
    ),
    step=st.one_of(st.integers(1, 5000), st.just(2**30)),
)
def test_frames_come_out_as_they_went_in(sizes: list[int], step: int) -> None:
    contents = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    step = max(step, sum(sizes) // 500)
    reader = FrameReader(LIMIT)
    assert [bytes(frame) for frame in feed(reader, framed(*contents), step)] == contents


def test_frames_own_their_bytes() -> None:
    reader = FrameReader(LIMIT)
    first, second = feed(reader, framed(b"one", b"two"))
    first[0] = ord("!")
    (third,) = feed(reader, framed(b"six"))
    assert (bytes(first), bytes(second), bytes(third)) == (b"!ne", b"two", b"six")


def test_a_large_frame_is_received_in_place() -> None:
    content = bytes(range(256)) * 20_000
    reader = FrameReader(LIMIT)
    (frame,) = feed(reader, framed(content), 100_000)
    assert frame == content
    assert isinstance(frame.obj, bytearray)


@pytest.mark.parametrize("size", [60_000, 131_068, 524_288, 2**31 - 1])
def test_a_claimed_size_allocates_little(size: int) -> None:
    reader = FrameReader(2**31 - 1)
    assert feed(reader, struct.pack(">i", size) + b"few") == []
    assert len(reader.get_buffer()) <= 16 * 1024


def test_a_peer_that_has_sent_a_large_frame_gets_the_room_for_the_next_one_at_once() -> None:
    reader = FrameReader(LIMIT)
    feed(reader, framed(bytes(500_000)))
    feed(reader, struct.pack(">i", LIMIT) + b"few")
    assert len(reader.get_buffer()) == 500_000 - len(b"few")
    feed(reader, bytes(LIMIT - len(b"few")))
    feed(reader, struct.pack(">i", LIMIT) + b"few")
    assert len(reader.get_buffer()) == 1024 * 1024 - len(b"few")


def test_the_buffer_follows_the_traffic() -> None:
    reader = FrameReader(LIMIT)
    assert len(reader.get_buffer()) == 4096
    feed(reader, framed(bytes(1000)) * 1000)
    assert len(reader.get_buffer()) == 131072
    for _ in range(2000):
        feed(reader, framed(b"small"))
    assert len(reader.get_buffer()) == 4096


@pytest.mark.parametrize(
    ("start", "error", "text"),
    [
        (struct.pack(">i", LIMIT + 1), FrameTooLarge, "8388609 bytes, 8388608 are allowed"),
        (struct.pack(">i", -1), MalformedMessage, "claims -1 bytes"),
        (b"GET / HTTP/1.1\r\n", FrameTooLarge, "looks like HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", FrameTooLarge, "looks like a TLS client"),
        (b"\xff\xfe\xfd\xfc", MalformedMessage, "a frame claims"),
    ],
)
def test_sizes_that_cannot_be(start: bytes, error: type[Exception], text: str) -> None:
    reader = FrameReader(LIMIT)
    found: list[memoryview] = []
    data = framed(b"good") + start
    reader.get_buffer()[: len(data)] = data
    with pytest.raises(error, match=text):
        found.extend(reader.buffer_updated(len(data)))
    assert found == [b"good"]


@pytest.mark.parametrize("client_id", [None, "", "me", "\u00e9" * 100])
@pytest.mark.parametrize(
    ("request_", "version"),
    [(MetadataRequest(topics=[]), 8), (MetadataRequest(topics=[]), 9), (ApiVersionsRequest(), 3)],
)
def test_request_headers(client_id: str | None, request_: Any, version: int) -> None:
    frame = b"".join(request_frame(request_, version, -7, client_id))[4:]
    header = parse_request_header(memoryview(frame))
    assert header[:4] == (request_.API_KEY, version, -7, client_id)
    assert len(frame) - header.body_offset == len(request_frame(request_, version, -7, None)[0]) - (
        15 if version in request_.FLEXIBLE else 14
    )


def test_headers_of_unknown_apis_and_versions_are_parsed() -> None:
    assert parse_request_header(struct.pack(">hhih", 999, 3, 1, -1)) == RequestHeader(999, 3, 1, None, 10)
    newer = struct.pack(">hhih", 18, 99, 1, -1) + b"\x01\x05\x02ab" + b"body"
    assert parse_request_header(newer) == RequestHeader(18, 99, 1, None, 15)
    assert parse_request_header(struct.pack(">hhih", 18, -1, 1, 0)) == RequestHeader(18, -1, 1, "", 10)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0\3\0\1\0\0\0\1\0", id="cut in the client id's length"),
        pytest.param(struct.pack(">hhih", 3, 1, 1, 5) + b"abc", id="cut in the client id"),
        pytest.param(struct.pack(">hhih", 3, 1, 1, -2), id="client id of length -2"),
        pytest.param(struct.pack(">hhih", 3, 1, 1, 1) + b"\xff", id="client id not UTF-8"),
        pytest.param(struct.pack(">hhih", 3, 9, 1, -1), id="no tags where there must be"),
        pytest.param(struct.pack(">hhih", 3, 9, 1, -1) + b"\x05\x01", id="cut in the tags"),
        pytest.param(struct.pack(">hhih", 3, 9, 1, -1) + b"\xff\xff\xff\xff\xff", id="endless count of tags"),
        pytest.param(struct.pack(">hhih", 3, 9, 1, -1) + b"\xff\x7f" + bytes(99999), id="thousands of tags"),
    ],
)
def test_malformed_headers(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_request_header(frame)


@settings(max_examples=examples(200), deadline=None)
@given(key=st.sampled_from(sorted(APIS)), version=st.integers(-1, 20), rest=st.binary(max_size=40))
def test_any_header_is_read_or_refused(key: int, version: int, rest: bytes) -> None:
    frame = struct.pack(">hhi", key, version, 1) + rest
    try:
        header = parse_request_header(frame)
    except MalformedMessage:
        return
    assert 10 <= header.body_offset <= len(frame)


def response_bytes(response: Any, version: int, correlation_id: int | None) -> bytes:
    assert correlation_id is not None
    return b"".join(response_frame(response, version, correlation_id))


def test_answers_find_their_requests() -> None:
    client = ClientConnection("me", LIMIT)
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    first, _ = client.send(MetadataRequest(topics=[]), 9)
    second, _ = client.send(heartbeat, 0)
    third, _ = client.send(heartbeat, 4)
    assert client.in_flight == 3
    metadata = MetadataResponse(brokers=[], topics=[])
    answers = [
        response_bytes(metadata, 9, first),
        response_bytes(HeartbeatResponse(error_code=27), 0, second),
        response_bytes(HeartbeatResponse(error_code=0), 4, third),
    ]
    found = feed(client, b"".join(answers), 7)
    assert [answer.correlation_id for answer in found] == [first, second, third]
    assert [answer.response for answer in found] == [
        metadata,
        HeartbeatResponse(error_code=27),
        HeartbeatResponse(error_code=0),
    ]
    assert client.in_flight == 0


def test_a_produce_without_acks_has_no_answer() -> None:
    client = ClientConnection("me", LIMIT)
    correlation_id, frame = client.send(ProduceRequest(acks=0, timeout_ms=1, topic_data=[]), 9)
    assert correlation_id is None
    assert frame
    assert client.in_flight == 0
    assert client.send(ProduceRequest(acks=1, timeout_ms=1, topic_data=[]), 9)[0] is not None


def test_a_request_that_cannot_be_encoded_leaves_no_trace() -> None:
    client = ClientConnection("me", LIMIT)
    with pytest.raises(ValueError, match="FetchRequest has versions"):
        client.send(FetchRequest.blank(), 99)
    assert client.in_flight == 0


def test_responses_without_a_request() -> None:
    client = ClientConnection("me", LIMIT)
    with pytest.raises(MalformedMessage, match="which was not sent"):
        feed(client, response_bytes(HeartbeatResponse(error_code=0), 0, 5))
    client = ClientConnection("me", LIMIT)
    sent, _ = client.send(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 0)
    assert sent is not None
    with pytest.raises(MalformedMessage, match="instead of"):
        feed(client, response_bytes(HeartbeatResponse(error_code=0), 0, sent + 1))
    client = ClientConnection("me", LIMIT)
    with pytest.raises(MalformedMessage, match="3 bytes"):
        feed(client, framed(b"abc"))


def test_a_broker_too_old_for_our_api_versions_answers_in_version_0() -> None:
    client = ClientConnection("me", LIMIT)
    sent, _ = client.send(ApiVersionsRequest(), 4)
    api = ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2)
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[api])
    (answer,) = feed(client, response_bytes(refusal, 0, sent))
    assert answer.response == refusal
