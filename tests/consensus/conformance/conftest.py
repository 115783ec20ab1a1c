"""The kit's stores keep their data in memory if there is enough of it; how much of the kit ``make test`` runs.

``make test`` tries a quarter of the model's examples on each of Parley's stores, and kills 25 candidates, on the
embedded store only. ``make soak`` runs all of the examples and a hundred kills on every store.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from parley.consensus.conformance import machine
from parley.consensus.conformance.checks import elections
from tests.support.proportion import examples
from tests.support.stores.servers import data_place

_KILLS = "[election-hundred-kills]"
_MODEL = "[model-agreement]"
_KILLS_IN_TEST = ("TestLocal", "TestMemory")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent != here:
            continue
        if item.name.endswith((_MODEL, _KILLS)):
            item.add_marker("hypothesis")
        if item.name.endswith(_KILLS) and item.parent is not None and item.parent.name not in _KILLS_IN_TEST:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(autouse=True)
def _examples_in_proportion(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.name.endswith(_MODEL):
        monkeypatch.setattr(machine, "SETTINGS", settings(machine.SETTINGS, max_examples=examples(100)))
    if request.node.name.endswith(_KILLS):
        monkeypatch.setattr(elections, "KILLS", examples(100))


@pytest.fixture(scope="module", autouse=True)
def _data_in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    tmp_path_factory.getbasetemp()  # what tests write themselves stays where it always is
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", data_place())
        yield
