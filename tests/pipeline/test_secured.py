"""The pipeline reaches a secured cluster, and no representation of its settings shows a secret."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from parley import Broker
from parley.pipeline.client.cluster import Cluster, Connection
from parley.pipeline.format.options import connection
from parley.pipeline.mirror.settings import from_mm2
from parley.protocol.client import NotAuthenticated
from parley.protocol.security.client_security import SecurityProperties
from tests.broker.security.secured_brokers import SecuredBrokers, plain_line

SECRET = "alice's secret"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> SecuredBrokers:
    return SecuredBrokers(tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="module")
def broker(secured: SecuredBrokers) -> Iterator[Broker]:
    own = ("log.dirs", "coordination.url", "coordination.session.timeout.ms")
    settings = {name: value for name, value in secured.settings(1).items() if name not in own}
    with Broker(settings | {"auto.create.topics.enable": "true"}) as running:
        yield running


def test_a_connection_travels_to_another_process(broker: Broker, secured: SecuredBrokers) -> None:
    properties = secured.client_properties()
    made = Connection(bootstrap=broker.bootstrap_servers, security=SecurityProperties.of(properties))
    with Cluster(pickle.loads(pickle.dumps(made))) as cluster:
        assert cluster.partitions(re.compile(".*")) == {}
    assert SECRET not in repr(made)


def test_a_refused_login_is_not_tried_again(broker: Broker, secured: SecuredBrokers) -> None:
    wrong = secured.client_properties() | {"sasl.jaas.config": plain_line("alice").replace("secret", "guess")}
    made = Connection(bootstrap=broker.bootstrap_servers, security=SecurityProperties.of(wrong))
    with Cluster(made) as cluster, pytest.raises(NotAuthenticated, match="rejects the login"):
        cluster.contact()


def test_options_of_spark(broker: Broker, secured: SecuredBrokers) -> None:
    settings = {**secured.client_properties(), "bootstrap.servers": broker.bootstrap_servers}
    made = connection(settings, api_timeout_ms=1000)
    assert dict(made.security.items)["sasl.mechanism"] == "PLAIN"
    assert SECRET not in repr(made)


def test_the_clusters_of_a_mirror(secured: SecuredBrokers) -> None:
    given = {f"A.{key}": value for key, value in secured.client_properties().items()}
    addresses = {"clusters": "A, B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1"}
    settings = from_mm2({**addresses, **given, "A->B.enabled": "true"})
    (flow,) = [each for each in settings.flows if each.choices.enabled]
    assert dict(flow.source.security.items) == secured.client_properties()
    assert flow.target.security.items == ()
    assert SECRET not in repr(settings)
    assert settings.ignored == ()
