"""Which program makes each picture of ``docs/``: a picture that is not here fails a test."""

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
"""Drawings, which are the same each time: ``make pictures`` writes them."""

RECORDED: Final[Mapping[str, Callable[[], str]]] = {"quickstart.svg": quickstart}
"""What a program printed when it ran: ``make pictures`` writes one only if PICTURES names it."""

ELSEWHERE: Final[Mapping[str, str]] = {
    "example-orders.svg": "parley/tools/orders_picture.py",
    "console-*.png": "tests/tools/console/test_in_a_browser.py",
}
"""Pictures that other programs write, and these programs."""
