"""The worked example: DuckDB reads the rows that plain Python computes, although the driver is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley import Broker
from parley.tools.orders_example import events, expected, load_table, main, read_with_duckdb, revenue
from parley.tools.orders_picture import picture
from tests.pipeline.standalone_spark import SETTINGS, standalone_spark
from tests.support.java_archives import small_spark


def test_the_picture_in_the_docs_is_that_of_the_example() -> None:
    docs = Path(__file__).parents[2] / "docs" / "example-orders.svg"
    assert docs.read_text() == picture(expected(events(1000)))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", small_spark())  # it is started three times
    assert main(["--events", "300", "--plot", str(tmp_path / "revenue.svg")]) == 0
    assert "all agree with plain Python" in capfd.readouterr().out
    assert (tmp_path / "revenue.svg").read_text() == picture(expected(events(300)))


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_example_on_two_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changes = events(1500, seed=7)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    settings = "".join(f"{key} {value}\n" for key, value in SETTINGS.items())
    (tmp_path / "spark-defaults.conf").write_text(settings)
    with (
        standalone_spark(tmp_path, monkeypatch, workers=2, cores=1) as master,
        Broker({"num.partitions": "3"}) as broker,
    ):
        revenue(broker.bootstrap_servers, tmp_path, changes, master)
        load_table(broker.bootstrap_servers, tmp_path / "table", master)
        assert read_with_duckdb(tmp_path / "table") == expected(changes)
