"""Every subscriber receives a change of the metadata, even if another subscriber fails."""

from __future__ import annotations

import pytest

from parley.broker.metadata.changes import ControllerElected, Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage

ELECTED = Delta(7, 1, (ControllerElected(1, 7),))


def test_a_failing_subscriber_does_not_keep_changes_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    metadata = Metadata(MetadataImage("cluster"))
    heard: list[tuple[Delta, MetadataImage]] = []

    def fails(delta: Delta, image: MetadataImage) -> None:
        raise ValueError("boom")

    metadata.subscribe(fails)
    metadata.subscribe(lambda delta, image: heard.append((delta, image)))
    metadata.apply(ELECTED)
    assert heard == [(ELECTED, metadata.image)]
    assert metadata.image.controller_id == 1
    metadata.replace(MetadataImage("cluster"), ELECTED)
    assert heard[1:] == [(ELECTED, metadata.image)]
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 2
