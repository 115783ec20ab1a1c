"""The Helm chart: Helm and kubeconform accept it, its parts agree, and a broker accepts the configuration in it."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from parley.broker.config import BrokerConfig, parse_properties
from parley.configuration.providers import ConfigProviders
from parley.tools.cli.environment import MOUNTED, merged
from tests.deploy.test_examples import dockerfile
from tests.support.helm import CHART, EXAMPLES, NEWEST, Manifest, conforms, helm, manifests, refusal, rendered
from tests.system.peers import KUBERNETES

pytestmark = pytest.mark.slow

ROOT = CHART.parents[2]
ETCD = "etcd://etcd:2379/parley"


def objects(example: str) -> dict[tuple[str, str], Manifest]:
    return manifests(rendered(CHART / "examples" / example))


def pod(found: dict[tuple[str, str], Manifest]) -> Manifest:
    template: Manifest = found["StatefulSet", "kafka-parley"]["spec"]["template"]
    return template


def broker(found: dict[tuple[str, str], Manifest]) -> dict[str, Any]:
    (container,) = pod(found)["spec"]["containers"]
    made: dict[str, Any] = container
    return made


def configuration(found: dict[tuple[str, str], Manifest], ordinal: int, folder: Path) -> BrokerConfig:
    """What the broker of a pod makes of its variables, its files and its name."""
    files = found["ConfigMap", "kafka-parley"]["data"]
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "jaas").write_text("org.apache.kafka.common.security.scram.ScramLoginModule required;")
    texts = {name: text.replace("/etc/parley/", f"{folder}/") for name, text in files.items()}
    in_file = parse_properties(texts["broker.properties"].replace("/etc/parley-sasl", str(folder)))
    variables = {each["name"]: each["value"] for each in broker(found)["env"] if "value" in each}
    given = merged(variables, in_file, {}, f"kafka-parley-{ordinal}")
    return BrokerConfig.from_properties(ConfigProviders(given).resolve(given))


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_helm_accepts_the_examples(values: Path) -> None:
    done = helm("lint", "--strict", str(CHART), "--values", str(values), "--kube-version", NEWEST)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_the_schemas_accept_the_examples(kubernetes: str) -> None:
    fitting = [values for values in EXAMPLES if kubernetes == NEWEST or "rack:" not in values.read_text()]
    assert len(fitting) > 2
    assert conforms("".join(rendered(values, kubernetes=kubernetes) for values in fitting), kubernetes) == ""


def test_the_schemas_find_mistakes() -> None:
    wrong = rendered(EXAMPLES[0]).replace("serviceName:", "servicename:")
    assert "additional properties 'servicename' not allowed" in conforms(wrong, NEWEST)


def test_every_value_has_its_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert values.keys() == schema.keys() - {"global"}
    free = {"config", "resources", "podAnnotations", "podLabels", "nodeSelector", "affinity"}
    for name, given in values.items():
        if isinstance(given, dict) and name not in free:
            assert given.keys() == schema[name]["properties"].keys(), name


def test_settings_that_cannot_be_meant() -> None:
    assert "Several brokers need a store" in refusal({})
    assert "a host for each broker" in refusal({"store.url": ETCD, "external.hosts": ["a"]})
    assert "must be longer than stopWaitSeconds" in refusal({"store.url": ETCD, "stopWaitSeconds": 180})
    assert "additional properties 'broker' not allowed" in refusal({"broker": 3})
    assert "minimum" in refusal({"brokers": 0})
    done = helm("template", "x", str(CHART), "--kube-version", "1.34.0", "--set", f"rack.enabled=true,store.url={ETCD}")
    assert "rack.enabled needs Kubernetes 1.35" in done.stderr


def test_brokers_understand_their_generated_configuration(tmp_path: Path) -> None:
    found = objects("node-ports.yaml")
    (variable,) = broker(found)["env"]
    assert variable["name"] == "NODE_IP"
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "status.hostIP"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NODE_IP", "192.0.2.7")
        configs = [configuration(found, ordinal, tmp_path) for ordinal in range(5)]
    assert [config.broker_id for config in configs] == [100, 101, 102, 103, 104]
    for ordinal, config in enumerate(configs):
        assert not config.warnings
        inside, outside = config.advertised
        assert inside.host == f"kafka-parley-{ordinal}.kafka-parley-brokers.default.svc.cluster.local"
        service = found["Service", f"kafka-parley-{ordinal}"]["spec"]
        assert (outside.host, outside.port) == ("192.0.2.7", service["ports"][0]["nodePort"])
        assert service["selector"]["statefulset.kubernetes.io/pod-name"] == f"kafka-parley-{ordinal}"
    assert (configs[0].num_partitions, configs[0].log_retention_ms) == (6, 604_800_000)
    assert (configs[0].default_replication_factor, configs[0].min_insync_replicas) == (3, 2)


def test_a_broker_alone_needs_no_store(tmp_path: Path) -> None:
    config = configuration(objects("one-broker.yaml"), 0, tmp_path)
    assert (config.offsets_topic_replication_factor, config.min_insync_replicas) == (1, 1)
    assert "coordination.url" not in config.given


def test_addresses_of_load_balancers(tmp_path: Path) -> None:
    fixed = objects("fixed-addresses.yaml")
    hosts = [configuration(fixed, ordinal, tmp_path).advertised[1].host for ordinal in range(3)]
    assert hosts == ["192.0.2.10", "192.0.2.11", "192.0.2.12"]
    assert ("PodDisruptionBudget", "kafka-parley") not in fixed
    secured = objects("secured.yaml")
    annotations = secured["Service", "kafka-parley-2"]["metadata"]["annotations"]
    assert annotations == {"external-dns.alpha.kubernetes.io/hostname": "broker-2.kafka.example.com"}
    config = configuration(secured, 2, tmp_path)
    assert (config.advertised[1].host, config.advertised[1].port) == ("broker-2.kafka.example.com", 9094)


def test_tls_and_logins(tmp_path: Path) -> None:
    found = objects("secured.yaml")
    config = configuration(found, 0, tmp_path)
    assert {each.protocol for each in config.bound} == {"SASL_SSL"}
    texts = config.texts_for_listener("EXTERNAL", "SCRAM-SHA-512")
    assert texts["sasl.jaas.config"].startswith("org.apache.kafka.common.security.scram.ScramLoginModule")
    mounts = {each["name"]: each["mountPath"] for each in broker(found)["volumeMounts"]}
    assert Path(config.given["ssl.keystore.location"]).parent == Path(mounts["tls"])
    secrets = {each["name"]: each["secret"] for each in pod(found)["spec"]["volumes"] if "secret" in each}
    assert {name: secret["secretName"] for name, secret in secrets.items()} == {
        "tls": "parley-tls", "sasl": "parley-sasl", "etcd": "parley-etcd",
    }  # fmt: skip
    assert {secret["defaultMode"] for secret in secrets.values()} == {0o440}


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_selectors_and_labels_of_the_manifests_match(values: Path) -> None:
    found = manifests(rendered(values))
    labels, spec, container = pod(found)["metadata"]["labels"], pod(found)["spec"], broker(found)
    stateful = found["StatefulSet", "kafka-parley"]["spec"]
    selectors = [stateful["selector"]["matchLabels"]]
    selectors += [each["spec"]["selector"] for (kind, _), each in found.items() if kind == "Service"]
    selectors += [
        each["spec"]["selector"]["matchLabels"] for (kind, _), each in found.items() if kind.startswith("Pod")
    ]
    selectors += [each["labelSelector"]["matchLabels"] for each in spec.get("topologySpreadConstraints", ())]
    own = {"statefulset.kubernetes.io/pod-name"}
    assert all(
        {**labels, **{key: each[key] for key in own & each.keys()}}.items() >= each.items() for each in selectors
    )
    assert ("Service", stateful["serviceName"]) in found
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    services = [each["spec"]["ports"] for (kind, _), each in found.items() if kind == "Service"]
    reached = {port["targetPort"] for ports in services for port in ports} | {each["port"] for each in probes}
    assert reached <= ports.keys()
    given = parse_properties(found["ConfigMap", "kafka-parley"]["data"]["broker.properties"])
    listening = {int(each.rpartition(":")[2]) for each in (*given["listeners"].split(","), given["metrics.listener"])}
    assert listening == set(ports.values())
    claimed = {each["metadata"]["name"] for each in stateful["volumeClaimTemplates"]}
    assert {each["name"] for each in container["volumeMounts"]} == claimed | {each["name"] for each in spec["volumes"]}
    assert str(Path(MOUNTED).parent) in {each["mountPath"] for each in container["volumeMounts"]}
    assert spec["terminationGracePeriodSeconds"] > 60 + 60


def test_a_pod_is_as_restricted_as_the_image() -> None:
    found = objects("secured.yaml")
    spec, container = pod(found)["spec"], broker(found)
    user, group = next(line for line in dockerfile() if line.startswith("USER ")).removeprefix("USER ").split(":")
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (int(user), int(group))
    assert spec["securityContext"]["runAsNonRoot"]
    assert not spec["automountServiceAccountToken"]
    assert not spec["enableServiceLinks"], "a Service kafka would make variables such as KAFKA_PORT"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert f"CMD {json.dumps(container['args'])}" in dockerfile()


def test_alerts_find_what_the_service_monitor_scrapes() -> None:
    monitor = objects("secured.yaml")["ServiceMonitor", "kafka-parley"]
    (job,) = yaml.safe_load((CHART.parents[1] / "monitoring" / "prometheus.yml").read_text())["scrape_configs"]
    assert monitor["metadata"]["labels"][monitor["spec"]["jobLabel"]] == job["job_name"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "cluster", "replacement": "kafka-parley"}]


def test_commands_of_the_page() -> None:
    """Those that install are rendered: there is no cluster here."""
    lines = [line for line in (ROOT / "docs" / "deployment.md").read_text().splitlines() if line.startswith("helm ")]
    assert {line.split()[1] for line in lines} == {"install", "upgrade", "template", "lint"}
    for line in lines:
        _, command, *words = shlex.split(line.replace("deploy/helm", str(CHART.parent)))
        if command in ("install", "upgrade"):
            command, words = "template", [*words, "--kube-version", NEWEST]
        done = helm(command, *words)
        assert done.returncode == 0, done.stderr


def test_notes(tmp_path: Path) -> None:
    """Helm prints them when it installs, which needs a cluster. So they are rendered as a value here."""
    chart = shutil.copytree(CHART, tmp_path / "parley")
    notes = (chart / "templates" / "NOTES.txt").read_text()
    quoted = f'{{{{ define "notes" }}}}{notes}{{{{ end }}}}\nnotes: {{{{ include "notes" . | quote }}}}\n'
    (chart / "templates" / "notes.yaml").write_text(quoted)
    values = ("--values", str(CHART / "examples" / "node-ports.yaml"), "--kube-version", NEWEST)
    done = helm("template", "kafka", str(chart), *values, "--show-only", "templates/notes.yaml")
    text = yaml.safe_load(done.stdout)["notes"]
    assert "bootstrap.servers=kafka-parley.default.svc.cluster.local:9092, security.protocol=PLAINTEXT" in text
    assert "${env:NODE_IP}:${pod:ordinal+31000} of any broker" in text
    assert "Every client that reaches a broker may do everything" in text
