"""The examples in ``deploy/`` are complete, and agree with each other and with the broker. Nothing here needs Docker.

Their health checks are run unchanged, against real servers.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from parley.broker.config import BrokerConfig, read_configuration
from parley.tools.cli.environment import MOUNTED, merged
from parley.tools.cli.invocation import DISK_FAILED
from parley.tools.store_servers import KINDS, consul_program
from tests.support.container import instructions
from tests.support.stores.of_tools import store_server
from tests.system.peers import SCHEMAS
from tests.system.running import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
STORES = ("local", *KINDS)
BROKERS = ("broker-1", "broker-2", "broker-3")


def compose(store: str) -> dict[str, Any]:
    """Return the file with its anchors put in."""
    text: dict[str, Any] = yaml.safe_load((DEPLOY / store / "compose.yaml").read_text())
    return text


def settings(store: str, broker: str) -> dict[str, str]:
    """What a broker of the compose file is configured with."""
    service = compose(store)["services"][broker]
    assert f"./broker.properties:{MOUNTED}:ro" in service["volumes"]
    in_file = read_configuration(DEPLOY / store / "broker.properties")
    return merged(service["environment"], in_file, {}, service["hostname"])


def listeners(text: str) -> dict[str, tuple[str, int]]:
    """Host and port of each listener by its name."""
    parsed = (urlsplit(each.lower()) for each in text.split(","))
    return {each.scheme: (each.hostname or "", each.port or 0) for each in parsed}


def dockerfile() -> list[str]:
    """Return the instructions, each on one line, without comments."""
    return [f"{name} {text}" for name, text in instructions(DEPLOY / "Dockerfile")]


def test_there_is_a_folder_for_each_store_and_no_python() -> None:
    assert {path.name for path in DEPLOY.iterdir() if path.is_dir()} == {*STORES, "helm", "monitoring"}
    assert not list(DEPLOY.rglob("*.py"))


def test_configurations_differ_in_one_line() -> None:
    files = [(DEPLOY / store / "broker.properties").read_text().splitlines() for store in STORES]
    assert len({len(lines) for lines in files}) == 1
    (different,) = [lines for lines in zip(*files, strict=True) if len(set(lines)) > 1]
    assert [line.partition(":")[0] for line in different] == [f"coordination.url={store}" for store in STORES]


@pytest.mark.parametrize("store", STORES)
def test_brokers_are_configured_without_warnings(store: str) -> None:
    services, ports = compose(store)["services"], set()
    for number, broker in enumerate(BROKERS, 1):
        given = settings(store, broker)
        config = BrokerConfig.from_properties(given)
        assert not config.warnings
        assert config.broker_id == number
        assert services[broker]["hostname"] == broker
        (published,) = services[broker]["ports"]
        host, outer, inner = published.split(":")
        ports.add(outer)
        bound, advertised = listeners(given["listeners"]), listeners(given["advertised.listeners"])
        assert bound["outside"] == ("0.0.0.0", int(inner))
        assert advertised["outside"] == (host, int(outer)) == ("127.0.0.1", int(outer))
        assert advertised["inside"] == (broker, bound["inside"][1])
    assert len(ports) == len(BROKERS)


@pytest.mark.parametrize("store", STORES)
def test_a_compose_file_has_all_it_names(store: str) -> None:
    text = compose(store)
    assert set(text["services"]) == {*BROKERS, store} - {"local"}
    mounted: dict[str, dict[str, str]] = {}
    for name, service in text["services"].items():
        if "build" in service:
            assert "healthcheck" not in service, "the image's own"
            context = DEPLOY / store / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
        else:
            assert service["healthcheck"]["test"][0] == "CMD"
            assert re.fullmatch(r"[a-z0-9./-]+:v?\d+(\.\d+)+", service["image"]), "a version that stays what it is"
        mounted[name] = {target: source for source, target in (each.split(":")[:2] for each in service["volumes"])}
        for source in mounted[name].values():
            assert source in text["volumes"] or (source.startswith("./") and (DEPLOY / store / source).is_file())
    assert {source for each in mounted.values() for source in each.values() if source[0] != "."} == set(text["volumes"])
    for broker in BROKERS:
        given, folders = settings(store, broker), mounted[broker]
        assert folders[given["log.dirs"]] == broker
        url = urlsplit(given["coordination.url"])
        if store == "local":
            assert folders[url.path] == "coordination"
        else:
            assert (url.scheme, url.hostname, url.port) == (store, store, KINDS[store].usual_port)
            assert text["services"][broker]["depends_on"] == {store: {"condition": "service_healthy"}}


@pytest.mark.system  # the schema is one of the peers
@pytest.mark.parametrize("store", STORES)
def test_the_specification_accepts_a_compose_file(store: str) -> None:
    schema = json.loads((SCHEMAS / "compose-spec.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert list(validator.iter_errors(compose(store))) == []
    wrong = compose(store)
    wrong["services"]["broker-1"]["stop_grace"] = "60s"
    (error,) = validator.iter_errors(wrong)
    assert "'stop_grace' was unexpected" in error.message


def test_brokers_are_the_same_on_every_store() -> None:
    def brokers(store: str) -> list[dict[str, Any]]:
        found = [dict(compose(store)["services"][name]) for name in BROKERS]
        for broker in found:
            broker.pop("depends_on", None)
            broker["volumes"] = [each for each in broker["volumes"] if not each.startswith("coordination:")]
        return found

    assert all(brokers(store) == brokers("local") for store in KINDS)


def test_the_image_is_made_of_the_wheel() -> None:
    lines = dockerfile()
    assert [line for line in lines if line.startswith("FROM ")] == [
        "FROM python:3.11-slim AS build",
        "FROM python:3.11-slim",
    ]
    (copied,) = [line for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert copied == "COPY dist/parley_broker-*.whl /wheels/"
    # In the root, where every builder looks for it; beside the Dockerfile only BuildKit does.
    assert (ROOT / ".dockerignore").read_text().split() == ["*", "!dist", "dist/*", "!dist/*.whl"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["name"] == "parley-broker", "the wheel's name"
    (install,) = [line for line in lines if "pip" in line]
    assert "--only-binary :all:" in install
    (extras,) = re.findall(r"\.whl\)\[(.*?)\]", install)
    assert set(extras.split(",")) == {*KINDS, "security"} <= project["project"]["optional-dependencies"].keys()


def test_the_image_runs_a_broker_as_nobody_special() -> None:
    lines = dockerfile()
    last = "\n".join(lines[max(n for n, line in enumerate(lines) if line.startswith("FROM ")) :])
    ((uid, gid),) = re.findall(r"^USER ([1-9]\d*):([1-9]\d*)$", last, re.MULTILINE)
    assert f"groupadd --gid {gid} parley && useradd --uid {uid} --gid parley --no-create-home " in last
    (made,) = re.findall(r"install --directory --owner=parley --group=parley --mode=0750 (.*)$", last, re.MULTILINE)
    given = settings("local", "broker-1")
    assert set(made.split()) == {given["log.dirs"], urlsplit(given["coordination.url"]).path}
    assert '\nENTRYPOINT ["parley"]\n' in last
    assert last.endswith('\nCMD ["start", "--from-environment"]')
    assert "\nSTOPSIGNAL SIGTERM\n" in last


def image_health() -> list[str]:
    (line,) = [line for line in dockerfile() if line.startswith("HEALTHCHECK ")]
    words: list[str] = json.loads(line.partition(" CMD ")[2])
    return words


@pytest.mark.system
def test_the_health_of_a_broker(tmp_path: Path) -> None:
    bash, option, program = image_health()
    assert (bash, option) == ("bash", "-c")
    assert f"/127.0.0.1/{settings('local', 'broker-1')['metrics.listener'].rpartition(':')[2]} " in program
    broker = BrokerProcess(tmp_path)
    broker.start()
    port = str(urlsplit(broker.metrics_url).port)
    words = [bash, option, program.replace("9464", port)]
    assert subprocess.run(words, check=False).returncode == 0
    broker.stop()
    assert subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode != 0


class ProtectedBroker(BrokerProcess):
    """A broker as the compose files and the unit run it: no capability, and only its folder is writable."""

    preloaded = False

    def command(self) -> list[str]:
        steps = (
            'mount --bind "$0" "$0" && mount -o remount,bind,ro / && '
            'exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"'
        )
        return ["unshare", "--mount", "sh", "-c", steps, str(self.folder), *super().command()]


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
def test_a_broker_needs_no_privilege_and_writes_only_to_its_folder(tmp_path: Path) -> None:
    for store in KINDS:
        for name in BROKERS:
            service = compose(store)["services"][name]
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
            assert service["security_opt"] == ["no-new-privileges:true"]
    broker = ProtectedBroker(tmp_path, {"coordination.url": f"local://{tmp_path}/coordination"})
    broker.start()
    status = Path(f"/proc/{broker.pid}/status").read_text()
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    assert re.search(r" / / ro\b", Path(f"/proc/{broker.pid}/mountinfo").read_text())
    assert broker.stop() == 0, broker.log()


@pytest.mark.system
@pytest.mark.parametrize("store", KINDS)
def test_the_health_of_a_store(store: str, tmp_path: Path) -> None:
    words = compose(store)["services"][store]["healthcheck"]["test"][1:]
    with store_server(store, tmp_path) as url:
        port = str(urlsplit(url).port)
        words = [word.replace(str(KINDS[store].usual_port), port) for word in words]
        words[0] = consul_program() if store == "consul" else words[0]
        where = {"ETCDCTL_ENDPOINTS": f"127.0.0.1:{port}", "CONSUL_HTTP_ADDR": f"127.0.0.1:{port}", "ETCDCTL_API": "3"}
        environment = {**os.environ, **where}
        assert subprocess.run(words, env=environment, timeout=30, check=False).returncode == 0
    assert subprocess.run(words, env=environment, timeout=30, check=False, stderr=subprocess.DEVNULL).returncode != 0


def test_the_unit_of_systemd() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "parley.service")
    assert unit.sections() == ["Unit", "Service", "Install"]
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert any(line.startswith("ENV PATH=/opt/parley/bin:$PATH ") for line in dockerfile())
    assert (program, words) == ("/opt/parley/bin/parley", ["start", "/etc/parley/broker.properties"])
    user = unit["Service"]["User"]
    assert (
        f" --home-dir /var/lib/{unit['Service']['StateDirectory']} --shell /usr/sbin/nologin {user}\n"
        in (DEPLOY / "parley.service").read_text()
    )
    assert unit["Service"]["Restart"] == "on-failure"
    assert int(unit["Service"]["RestartPreventExitStatus"]) == DISK_FAILED, "a restart does not help a full disk"
    assert unit["Service"]["StateDirectoryMode"] == "0700", "no other user of the machine may read the topics"
    assert unit["Service"]["UMask"] == "0077"


def systemd_analyze(command: str, *words: str) -> str:
    """Run ``systemd-analyze``, which must accept the unit, and return its output."""
    run = subprocess.run(["systemd-analyze", "--no-pager", command, *words], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_accepts_the_unit_and_its_protection(tmp_path: Path) -> None:
    unit = tmp_path / "parley.service"
    # systemd looks for the program, which is not installed here.
    unit.write_text((DEPLOY / "parley.service").read_text().replace("/opt/parley/bin/parley", "/bin/true"))
    assert "parley.service" not in systemd_analyze("verify", "--man=no", str(unit)), "a setting that systemd ignores"
    # Ten times the exposure level, of 100: 31 when this was written. A filter of system calls would lower it further.
    systemd_analyze("security", "--offline=true", "--threshold=31", str(unit))


def test_prometheus_scrapes_every_broker() -> None:
    (job,) = yaml.safe_load((DEPLOY / "monitoring" / "prometheus.yml").read_text())["scrape_configs"]
    port = settings("local", "broker-1")["metrics.listener"].rpartition(":")[2]
    assert job["static_configs"] == [
        {"targets": [f"{broker}:{port}" for broker in BROKERS], "labels": {"cluster": "main"}}
    ]


def test_files_that_the_documentation_names_are_there() -> None:
    pages = "\n".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    named = set(re.findall(r"deploy/[\w./-]*\w", pages))
    assert "deploy/etcd/compose.yaml" in named
    assert all((ROOT / name).exists() for name in named)
