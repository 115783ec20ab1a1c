"""``parley acls``: what its options mean, and a round trip through a broker."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from parley import Broker
from parley.broker.security.acls.bindings import PermissionType
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.tools.cli.acls import Options, check_combination, plan
from parley.tools.cli.invocation import CommandError
from tests.tools.conftest import Parley

TOPIC, GROUP, CLUSTER, ID = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
ALICE = "User:alice"


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with Broker(authorizer_class_name=authorizer, super_users="User:ANONYMOUS") as broker:
        yield broker


def planned(options: Options) -> dict[tuple[ResourceType, str], set[str]]:
    check_combination(options)
    return {
        resource: {
            f"{permission.name} {principal} {operation.name} {host}"
            for principal, host, operation, permission in entries
        }
        for resource, entries in plan(options).items()
    }


def test_a_producer_needs_write_describe_and_create() -> None:
    options = Options(
        add=True, producer=True, idempotent=True, topic=["t"], transactional_id=["x"], allow_principal=[ALICE]
    )
    assert planned(options) == {
        (TOPIC, "t"): {f"ALLOW {ALICE} {operation} *" for operation in ("WRITE", "DESCRIBE", "CREATE")},
        (ID, "x"): {f"ALLOW {ALICE} WRITE *", f"ALLOW {ALICE} DESCRIBE *"},
        (CLUSTER, "kafka-cluster"): {f"ALLOW {ALICE} IDEMPOTENT_WRITE *"},
    }


def test_a_consumer_needs_read_and_describe() -> None:
    options = Options(
        add=True, consumer=True, topic=["t"], group=["g"], allow_principal=[ALICE], allow_host=["10.0.0.1", "10.0.0.2"]
    )
    assert planned(options) == {
        (TOPIC, "t"): {f"ALLOW {ALICE} {each} 10.0.0.{n}" for each in ("READ", "DESCRIBE") for n in (1, 2)},
        (GROUP, "g"): {f"ALLOW {ALICE} READ 10.0.0.1", f"ALLOW {ALICE} READ 10.0.0.2"},
    }


def test_producer_and_consumer_together() -> None:
    options = Options(add=True, producer=True, consumer=True, topic=["t"], group=["g"], allow_principal=[ALICE])
    operations = {text.split()[2] for text in planned(options)[TOPIC, "t"]}
    assert operations == {"WRITE", "DESCRIBE", "CREATE", "READ"}


def test_operations_are_named_as_in_kafka_and_all_is_the_default() -> None:
    for name in ("DescribeConfigs", "describe_configs", "DESCRIBECONFIGS"):
        (entry,) = plan(Options(topic=["t"], operation=[name], deny_principal=["User:*"]))[TOPIC, "t"]
        assert entry == ("User:*", "*", Operation.DESCRIBE_CONFIGS, PermissionType.DENY)
    (entry,) = plan(Options(topic=["t"], allow_principal=[ALICE]))[TOPIC, "t"]
    assert entry[2] is Operation.ALL


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(list_=True, allow_principal=[ALICE]), "--list takes neither"),
        (Options(producer=True, operation=["Read"], topic=["t"]), "take neither --operation"),
        (Options(producer=True), "With --producer"),
        (Options(consumer=True, topic=["t"]), "With --consumer"),
        (Options(consumer=True, topic=["t"], group=["g"], cluster=True), "With --consumer"),
        (Options(idempotent=True, topic=["t"]), "--idempotent"),
        (Options(add=True, principal=[ALICE]), "only available if --list"),
        (Options(add=True, topic=["t"], resource_pattern_type="match"), "must be literal or prefixed"),
        (Options(add=True, topic=["t"], resource_pattern_type="some"), "takes any, match, literal, prefixed"),
        (Options(add=True, topic=["t"], allow_principal=["alice"]), "not a principal"),
        (Options(add=True, topic=["t"], allow_principal=[ALICE], operation=["Fly"]), "--operation takes"),
        (Options(add=True, cluster=True, allow_principal=[ALICE], operation=["Read"]), "only supports operations"),
        (Options(add=True, allow_principal=[ALICE]), "at least one resource"),
    ],
)
def test_options_that_make_no_sense(options: Options, text: str) -> None:
    with pytest.raises(CommandError, match=text):
        planned(options)


def test_acls_are_added_listed_and_removed(parley: Parley, secured: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    at = ("--bootstrap-server", secured.bootstrap_servers)
    added = parley("acls", *at, "--add", "--topic", "t", "--allow-principal", ALICE, "--operation", "Read")
    assert added.code == 0, added.err
    assert "Adding ACLs for resource `ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)`" in added.out
    assert "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)" in added.out
    again = parley("acls", *at, "--add", "--topic", "t", "--allow-principal", ALICE, "--operation", "Read")
    assert "already exists" in again.out
    parley("acls", *at, "--add", "--topic", "t", "--resource-pattern-type", "prefixed", "--deny-principal", "User:bob")
    listed = json.loads(
        parley("acls", *at, "--list", "--topic", "tt", "--resource-pattern-type", "match", "--json").out
    )
    assert [(acl["patternType"], acl["principal"]) for acl in listed] == [("PREFIXED", "User:bob")]
    of_alice = parley("acls", *at, "--list", "--principal", ALICE).out
    assert "ACLs for principal `User:alice`" in of_alice
    assert "bob" not in of_alice
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    kept = parley("acls", *at, "--remove", "--topic", "t", "--resource-pattern-type", "any")
    assert "Are you sure you want to delete all ACLs" in kept.out
    assert len(json.loads(parley("acls", *at, "--list", "--json").out)) == 2
    for told in ("2 ACLs removed.\n", "No ACL matches: none was removed.\n"):
        removed = parley("acls", *at, "--remove", "--topic", "t", "--resource-pattern-type", "any", "--force")
        assert (removed.code, removed.err) == (0, told)
    assert json.loads(parley("acls", *at, "--list", "--json").out) == []


def test_without_an_authorizer_the_error_says_what_to_do(parley: Parley, broker: Broker) -> None:
    done = parley("acls", "--bootstrap-server", broker.bootstrap_servers, "--list")
    assert done.code == 1
    assert "set authorizer.class.name on every broker" in done.err
    added = parley(
        *("acls", "--bootstrap-server", broker.bootstrap_servers),
        *("--add", "--topic", "t", "--allow-principal", ALICE, "--operation", "Read"),
    )
    assert "The ACL was not added: " in added.err
