"""``parley features``: levels are shown, lowered and raised, and printed as kafka-features does."""

from __future__ import annotations

import json

import pytest

from parley import Broker
from tests.tools.conftest import Parley

TV = "transaction.version"


def test_a_level_goes_down_and_up_again(parley: Parley) -> None:
    with Broker() as broker:
        at = ("--bootstrap-server", broker.bootstrap_servers)

        def level() -> tuple[int, int]:
            (row,) = [
                row for row in json.loads(parley("features", "describe", *at, "--json").out) if row["feature"] == TV
            ]
            return row["level"], row["epoch"]

        shown = f"Feature: {TV}\tSupportedMinVersion: 0\tSupportedMaxVersion: 2\tFinalizedVersionLevel: 2\tEpoch: 0"
        assert shown in parley("features", "describe", *at).lines
        for words, told, after in (
            (("downgrade", "--feature", f"{TV}=1", "--dry-run"), "can be downgraded to 1", (2, 0)),
            (("downgrade", "--feature", f"{TV}=1"), "was downgraded to 1", (1, 1)),
            (("disable", "--feature", TV, "--unsafe"), "was disabled", (0, 2)),
            (("upgrade", "--feature", f"{TV}=2"), "was upgraded to 2", (2, 3)),
        ):
            done = parley("features", words[0], *at, *words[1:])
            assert (done.code, done.lines) == (0, [f"{TV} {told}."]), done.err
            assert level() == after
        refused = parley("features", "upgrade", *at, "--feature", f"{TV}=3")
        assert refused.code == 1
        assert f"Invalid update version 3 for feature {TV}" in refused.err
        assert level() == (2, 3)


@pytest.mark.parametrize("text", ["transaction.version", "=1", "a=", "a=-1", "a=x", "a=40000"])
def test_a_malformed_level_is_refused(parley: Parley, text: str) -> None:
    done = parley("features", "upgrade", "--feature", text)
    assert done.code == 1
    assert f"--feature {text}: must be NAME=LEVEL" in done.err


def test_without_a_subcommand_its_help_is_shown(parley: Parley) -> None:
    shown = parley("features")
    assert shown.code == 1
    assert all(name in shown.out + shown.err for name in ("describe", "upgrade", "downgrade", "disable"))
