"""The bytes of MirrorMaker's records."""

from __future__ import annotations

import pytest

from parley.pipeline.mirror.internal_records import (
    Checkpoint,
    Heartbeat,
    MalformedRecord,
    OffsetSync,
    Progress,
    StoredOffset,
)


def test_heartbeat() -> None:
    beat = Heartbeat("A", "B", 1_700_000_000_000)
    key, value, headers = beat.encode()
    assert key == b"\0\1A\0\1B"
    assert value == b"\0\0" + (1_700_000_000_000).to_bytes(8, "big")
    assert headers == ()
    assert Heartbeat.decode(key, value) == beat


def test_a_heartbeat_has_the_progress_in_headers_which_mirror_maker_ignores() -> None:
    beat = Heartbeat("A", "B", 1_700_000_000_000, Progress("A->B", 2, 5000, 1_000_000, 17))
    assert beat.encode()[:2] == Heartbeat("A", "B", 1_700_000_000_000).encode()[:2]
    assert Heartbeat.decode(*beat.encode()) == beat


@pytest.mark.parametrize("lag", [None, b"", b"many"])
def test_malformed_headers_are_ignored(lag: bytes | None) -> None:
    key, value, headers = Heartbeat("A", "B", 1, Progress("A->B", 2, 5000, 1_000_000, 17)).encode()
    assert Heartbeat.decode(key, value, (*headers[:-1], ("parley.lag", lag))).progress is None


def test_checkpoint() -> None:
    checkpoint = Checkpoint("group", "A.töpic", 7, 42, 40, "meta")
    key, value, _ = checkpoint.encode()
    assert key == b"\0\5group\0\x08A.t\xc3\xb6pic\0\0\0\7"
    assert value == b"\0\0" + (42).to_bytes(8, "big") + (40).to_bytes(8, "big") + b"\0\4meta"
    assert Checkpoint.decode(key, value) == checkpoint


def test_offset_sync() -> None:
    sync = OffsetSync("t", 1, 5, 3)
    key, value, _ = sync.encode()
    assert key == b"\0\1t\0\0\0\1"
    assert value == (5).to_bytes(8, "big") + (3).to_bytes(8, "big")
    assert OffsetSync.decode(key, value) == sync


def test_stored_offset() -> None:
    stored = StoredOffset("A", "t", 1, 41)
    key, value, _ = stored.encode()
    assert key == b'["MirrorSourceConnector",{"cluster":"A","partition":1,"topic":"t"}]'
    assert value == b'{"offset":41}'
    assert StoredOffset.decode(key, value) == stored
    ours = StoredOffset("A", "t", 1, 41, 40, (7, 0), 12, "made-once")
    key, value, _ = ours.encode()
    assert StoredOffset.decode(key, value) == ours
    older = b'{"offset":41,"downstream":40,"producerId":7,"producerEpoch":0}'
    assert StoredOffset.decode(key, older) == StoredOffset("A", "t", 1, 41, 40, (7, 0))


def test_offsets_of_other_connectors_and_tombstones_are_passed_over() -> None:
    key = b'["MirrorCheckpointConnector",{"group":"g","partition":1,"topic":"t"}]'
    assert StoredOffset.decode(key, b'{"offset":0}') is None
    assert StoredOffset.decode(StoredOffset("A", "t", 1, 2).encode().key, None) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, None), (b"\0\5abc", b"\0\0"), (b"\0\1A\0\1B", b"\0\1\0\0\0\0\0\0\0\0"), (b"\0\1\xff\0\1B", b"\0" * 10)],
)
def test_a_malformed_heartbeat_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(MalformedRecord):
        Heartbeat.decode(key, value)


@pytest.mark.parametrize("key", [b"", b"{}", b"[]", b'["MirrorSourceConnector",{}]', b"\xff"])
def test_a_malformed_stored_offset_is_refused(key: bytes) -> None:
    with pytest.raises(MalformedRecord):
        StoredOffset.decode(key, b'{"offset":1}')
