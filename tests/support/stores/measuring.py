"""``python -m tests.support.stores.measuring STORE...``: run the conformance kit and save its measurements.

They are saved in docs/measured/, from which ``make docs`` generates the table in docs/stores.md. Real servers are
started and stopped for this.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from parley.consensus.conformance.harness import Harness
from parley.consensus.conformance.runner import Result, run
from parley.consensus.conformance.stores.local import LocalHarness
from parley.consensus.conformance.stores.memory import MemoryHarness
from tests.support.stores.consul import OwnConsulHarness, consul_servers
from tests.support.stores.etcd import OwnEtcdHarness, etcd_servers
from tests.support.stores.zookeeper import OwnZookeeperHarness, zookeeper_servers

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "measured"


@contextmanager
def _consul() -> Iterator[Harness]:
    with consul_servers() as servers:
        yield OwnConsulHarness(servers)


@contextmanager
def _etcd() -> Iterator[Harness]:
    with etcd_servers() as servers:
        yield OwnEtcdHarness(servers)


@contextmanager
def _zookeeper() -> Iterator[Harness]:
    with zookeeper_servers() as servers:
        yield OwnZookeeperHarness(servers)


@contextmanager
def _memory() -> Iterator[Harness]:
    yield MemoryHarness()


@contextmanager
def _local() -> Iterator[Harness]:
    yield LocalHarness()


HARNESSES: Mapping[str, Callable[[], AbstractContextManager[Harness]]] = {
    "memory": _memory,
    "local": _local,
    "etcd": _etcd,
    "consul": _consul,
    "zookeeper": _zookeeper,
}


def main(stores: list[str]) -> int:
    """Measure these stores. Returns 1 if one does not conform."""
    os.environ.setdefault("TMPDIR", tempfile.gettempdir())  # a disk is measured with the rest, not memory
    FOLDER.mkdir(exist_ok=True)
    failed = 0
    for store in stores:
        with HARNESSES[store]() as harness:
            results = run(harness, on_result=_show)
        failed += sum(not result.passed for result in results)
        report = {"store": store, "checks": [result.as_json() for result in results]}
        (FOLDER / f"{store}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _show(result: Result) -> None:
    print(result.name, "passed" if result.passed else f"FAILED: {result.error}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
