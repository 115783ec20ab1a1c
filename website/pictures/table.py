"""The program that creates each picture of ``docs/``. A test fails for a picture that is not listed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from website.pictures import concepts
from website.pictures.parts import parts
from website.pictures.quickstart import quickstart

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"

DRAWN: Final[Mapping[str, Callable[[], str]]] = {
    "concepts-partition.svg": concepts.partition,
    "concepts-replicas.svg": concepts.replicas,
    "concepts-leader-epoch.svg": concepts.leader_epoch,
    "concepts-coordination.svg": concepts.coordination,
    "concepts-group.svg": concepts.group,
    "concepts-transaction.svg": concepts.transaction,
    "parts.svg": parts,
}
"""Drawings, which are always the same. ``make pictures`` writes all of them."""

RECORDED: Final[Mapping[str, Callable[[], str]]] = {"quickstart.svg": quickstart}
"""Recordings of a program's output. ``make pictures`` writes them only if PICTURES names them."""

ELSEWHERE: Final[Mapping[str, str]] = {
    "example-orders.svg": "parley/tools/orders_picture.py",
    "console-*.png": "tests/tools/console/test_in_a_browser.py",
}
"""Pictures that other programs write, with those programs."""

MEASURED: Final[Mapping[str, str]] = {"performance-*.svg": "bench/performance.py"}
"""Pictures of figures that `make bench` has measured, with the program that writes them."""
