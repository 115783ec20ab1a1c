"""The wheel and the source distribution install into a user's project, and work beside modules of any name in it.

Both are installed into separate environments. The libraries they need come from this environment.
"""

from __future__ import annotations

import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.installed import QUIET, ROOT, TOP_LEVEL, Installed, build, built, done
from tests.support.java_archives import small_spark

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(900)]

OWN_MODULES = ("tools/__init__.py", "protocol/__init__.py", "tests/__init__.py", "pipeline/__init__.py",
               "broker.py", "storage.py", "consensus.py")  # fmt: skip
"""Modules of the user's own, with names that a broker could have taken."""

EMBEDDING = """
import broker, consensus, pipeline, protocol, storage, tests, tools
assert all(module.OWN for module in (broker, consensus, pipeline, protocol, storage, tests, tools))

from confluent_kafka import Producer
from parley import Broker, read_topic

with Broker(data_dir="data") as running:
    with Producer({"bootstrap.servers": running.bootstrap_servers}) as producer:
        producer.produce("t", b"x")
    assert read_topic(running.bootstrap_servers, "t").num_rows == 1
"""

FIXTURE = """
import broker, storage, tools

def test_mine(kafka_broker):
    assert broker.OWN and storage.OWN and tools.OWN
    kafka_broker.create_topic("t")
"""

SPARK = """
import sys, tools, protocol
from confluent_kafka import Producer
from parley import Broker
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = spark.config("spark.driver.extraJavaOptions", sys.argv[1]).getOrCreate()
with Broker(data_dir="data") as running:
    with Producer({"bootstrap.servers": running.bootstrap_servers}) as producer:
        producer.produce("t", b"x")
    options = {"kafka.bootstrap.servers": running.bootstrap_servers, "subscribe": "t"}
    assert [bytes(row.value) for row in spark.read.format("parley").options(**options).load().collect()] == [b"x"]
spark.stop()
"""


@pytest.fixture(scope="module")
def distributions() -> Path:
    return built()


@pytest.fixture(scope="module")
def wheel(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    (file,) = distributions.glob("parley_broker-*.whl")
    return Installed(tmp_path_factory.mktemp("wheel"), file)


@pytest.fixture(scope="module")
def source(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Return the source distribution, installed as on a machine without a C compiler."""
    (archive,) = distributions.glob("parley_broker-*.tar.gz")
    folder = tmp_path_factory.mktemp("pure")
    words = ("wheel", "--no-build-isolation", *QUIET, "--wheel-dir", str(folder), str(archive))
    done(sys.executable, "-m", "pip", *words, PARLEY_PURE="1")
    (file,) = folder.glob("parley_broker-*-py3-none-any.whl")
    return Installed(tmp_path_factory.mktemp("source"), file)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with modules of a user's own."""
    for name in OWN_MODULES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("OWN = True\n")
    return tmp_path


def _use_everything(installed: Installed, project: Path) -> None:
    (project / "program.py").write_text(EMBEDDING)
    (project / "test_mine.py").write_text(FIXTURE)
    installed.run(project, "program.py")
    assert "1 passed" in installed.run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
    assert installed.run(project, "-m", "parley", "version").startswith("parley 0.")
    assert done(str(installed.python.with_name("parley")), "version", cwd=project).startswith("parley 0.")


def test_the_modules_are_compiled_by_one_target() -> None:
    """Each installation of this folder compiles them again, in a minute, unless it is told not to."""
    recipes = (ROOT / "Makefile").read_text().splitlines()
    (installing,) = [line for line in recipes if "pip install" in line and " -e ." in line.replace("'", "")]
    assert installing.strip().startswith("PARLEY_PURE=1 ")
    assert len([line for line in recipes if "build_ext" in line]) == 1


def test_the_wheel_has_two_names_and_its_compiled_modules(distributions: Path, wheel: Installed) -> None:
    (file,) = distributions.glob("*.whl")
    names = zipfile.ZipFile(file).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info/" not in name and ".data/" not in name}
    assert packages == TOP_LEVEL == wheel.names()
    manual = {Path(name).name for name in names if ".data/data/share/man/man1/" in name}
    assert manual == {page.name for page in (ROOT / "docs" / "man").glob("*.1")}
    assert "parley/py.typed" in names
    compiled = wheel.run(ROOT.parent, "-c", "import parley.compiled as c; print(*sorted(set(c.status().values())))")
    assert compiled.split() == ["compiled"]


def test_the_wheel_works_beside_modules_of_any_name(wheel: Installed, project: Path) -> None:
    _use_everything(wheel, project)


def test_the_source_distribution_works_without_a_compiler(source: Installed, project: Path) -> None:
    assert source.names() == TOP_LEVEL
    assert not list(source.site.rglob("*.so"))
    _use_everything(source, project)


@pytest.mark.soak
def test_every_module_is_compiled_into_the_wheel(tmp_path: Path) -> None:
    build(ROOT, tmp_path)
    (file,) = tmp_path.glob("*.whl")
    compiled = {name.split(".")[0] for name in zipfile.ZipFile(file).namelist() if name.endswith(".so")}
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["parley"]["compiled"]
    assert compiled == {"parley/_compiled__mypyc", *(name.removesuffix(".py") for name in listed)}


@pytest.mark.spark
@pytest.mark.soak
def test_spark_finds_its_source_beside_modules_of_any_name(wheel: Installed, project: Path) -> None:
    (project / "program.py").write_text(SPARK)
    wheel.run(project, "program.py", small_spark())


def test_importing_parley_is_cheap(wheel: Installed, tmp_path: Path) -> None:
    heavy = {"asyncio", "uvloop", "confluent_kafka", "pyarrow", "parley.broker", "parley.protocol", "parley.tools"}
    wheel.run(tmp_path, "-c", f"import sys, parley; assert not {heavy} & set(sys.modules)")
