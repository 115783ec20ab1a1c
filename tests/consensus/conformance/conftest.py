"""The kit's stores keep their data in memory if there is enough of it. ``make test`` runs a part of the kit.

``make test`` tries an eighth of the model's examples on the embedded stores and a twentieth on servers, and lists a
quarter of the keys. On the embedded stores only, it kills 12 candidates, and opens a thousand sessions. ZooKeeper and
Consul run the long checks only in ``make soak``, except for the model and the checks of their servers; etcd and the
embedded stores always run them. The third-party store runs the first check of each kind. ``make soak`` runs everything
on every store.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from parley.consensus.conformance import machine
from parley.consensus.conformance.checks import elections, keyvalue
from parley.consensus.conformance.runner import all_checks
from tests.support.fast_folder import fast_folder
from tests.support.proportion import examples

_KILLS = "[election-hundred-kills]"
_LEAKS = "[session-leaks-nothing]"
_MODEL = "[model-agreement]"
_PAGING = "[kv-paging]"
_EMBEDDED = ("TestLocal", "TestMemory")
_THIRD_PARTY = "TestPostgresql"
_COSTLY = {
    f"test_property[{name}]"
    for name in (
        "client-leaks-nothing",
        "election-stale-leader-fenced",
        "history-linearizable",
        "kv-concurrent-increments",
        "kv-paging",
        "session-many",
        "session-stopped-process",
        "store-wall-clock",
        "txn-atomic-to-others",
        "watch-burst",
        "watch-many",
        "watch-order",
        "watch-slow-consumer",
    )
}
"""Checks that take at least one second of CPU time, or ten seconds of waiting, on a server."""
_COSTLY_IN_SOAK = ("TestConsul", "TestZookeeper")
_FIRST_OF_KIND = {
    f"test_property[{each.name}]" for each in {c.name.partition("-")[0]: c for c in reversed(all_checks())}.values()
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent != here:
            continue
        if item.name.endswith((_MODEL, _KILLS, _PAGING)):
            item.add_marker("hypothesis")
        store = item.parent.name if item.parent is not None else ""
        if item.name.endswith((_KILLS, _LEAKS)) and store not in _EMBEDDED:
            item.add_marker(pytest.mark.soak)
        if store == _THIRD_PARTY and item.name not in _FIRST_OF_KIND:
            item.add_marker(pytest.mark.soak)
        if store in _COSTLY_IN_SOAK and item.name in _COSTLY:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(autouse=True)
def _examples_in_proportion(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.name.endswith(_MODEL):
        is_embedded = request.node.parent.name in _EMBEDDED
        count = examples(100) if is_embedded or examples(100) == 100 else examples(40)
        monkeypatch.setattr(machine, "SETTINGS", settings(machine.SETTINGS, max_examples=count))
    if request.node.name.endswith(_PAGING):
        monkeypatch.setattr(keyvalue, "PAGED_KEYS", max(2_500, examples(10_000)))  # several pages
    if request.node.name.endswith(_KILLS):
        monkeypatch.setattr(elections, "KILLS", examples(100))


@pytest.fixture(scope="module", autouse=True)
def _data_in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    tmp_path_factory.getbasetemp()  # files that tests write themselves stay in the usual place
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", fast_folder())
        yield
