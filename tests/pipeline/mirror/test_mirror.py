"""A mirror between two real clusters, its ranges copied in this process."""

from __future__ import annotations

from tests.pipeline.mirror.clusters import as_rows, copy_once, create, produce, properties, read, rows


def test_records_arrive_as_they_were(a: str, b: str) -> None:
    create(a, "orders", 2)
    produce(a, "orders", rows(500), 0)
    produce(a, "orders", rows(300, 500), 1, **{"compression.type": "lz4"})
    done = copy_once(properties(a, b))
    assert as_rows(read(b, "A.orders", 0)) == rows(500)
    assert as_rows(read(b, "A.orders", 1)) == rows(300, 500)
    (progress,) = done.progress()
    assert (progress.flow, progress.records, progress.lag) == ("A->B", 800, 0)
