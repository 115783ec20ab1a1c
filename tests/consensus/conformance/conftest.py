"""Where the kit's stores keep their data: in memory, where there is enough of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from tests.support.stores.servers import data_place


@pytest.fixture(scope="module", autouse=True)
def _data_in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    tmp_path_factory.getbasetemp()  # what tests write themselves stays where it always is
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", data_place())
        yield
