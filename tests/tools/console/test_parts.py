"""The console's decisions: health, filters, permissions; and that the built page matches its sources."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from pathlib import Path

import pytest

from parley.broker.security.acls.bindings import AclBinding, PatternType, PermissionType, ResourcePattern
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.pipeline.service.server import Listener
from parley.protocol.messages.background_work import HEALING, RECOVERY, DescribeBackgroundWorkResponse
from parley.tools.cli.invocation import CommandError
from parley.tools.console.access_api import decide
from parley.tools.console.broker_work import recovering, shown
from parley.tools.console.health import PartitionState, findings
from parley.tools.console.preparation import Wanted, prepared
from parley.tools.console.record_filter import BadFilter, RecordFilter

_RECORD = {
    "key": "k1", "value": {"user": {"age": 7}, "tags": ["a", "b"]}, "text": "hello", "offset": 5, "partition": 0,
    "timestamp": 1, "headers": {"trace": "x"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("value.user.age > 6", True),
        ("value.user.age > 6 and key == 'k2'", False),
        ("not (offset < 5) or partition == 3", True),
        ("contains(text, 'ell') and startswith(key, 'k')", True),
        ("matches(text, '^h.*o$')", True),
        ("value['tags'][1] == 'b' and 'a' in value.tags", True),
        ("headers.trace is not None and headers.other is None", True),
        ("value.user.name > 3", False),
        ("3 < offset < 6 and offset > -1", True),
    ],
)
def test_filters(text: str, passes: bool) -> None:
    assert RecordFilter(text).passes(_RECORD) is passes


@pytest.mark.parametrize(
    "text",
    ["", "open('x')", "().__class__.__bases__()", "[x for x in value]", "lambda: 1", "value ** 9", "9 * 9", "nothing",
     "matches(text, '(')", "matches(text, key)", "f'{value}'", "x := 1", "value[1:2]", "(" * 900, "a" * 1001,
     "-" * 990 + "1", "not " * 240 + "1", "value" + ".a" * 490, "lambda: " + "-" * 900 + "1"],
)  # fmt: skip
def test_an_invalid_filter_is_refused(text: str) -> None:
    with pytest.raises(BadFilter):
        RecordFilter(text)


def test_a_filter_rejects_a_record_whose_values_are_nested_too_deeply_to_compare() -> None:
    deep, same = list[object](), list[object]()
    for _ in range(2000):
        deep, same = [deep], [same]
    assert not RecordFilter("key == value").passes(_RECORD | {"key": deep, "value": same})


def _texts(partitions: list[PartitionState], alive: set[int], controller: int = 1) -> list[tuple[str, str]]:
    found = findings(partitions, alive=frozenset(alive), down_since={3: 0}, controller=controller)
    return [(one.level, one.text) for one in found]


def test_a_broker_that_opens_its_logs_need_not_be_restarted() -> None:
    work = DescribeBackgroundWorkResponse.Work(
        kind=RECOVERY,
        broker_id=3,
        topic=None,
        partition_index=-1,
        log_dir=None,
        done=1200,
        total=5000,
        elapsed_ms=60_000,
    )
    found = findings(
        [PartitionState("t", 0, 1, [1, 3], [1])],
        alive=frozenset({1}),
        down_since={3: 0},
        controller=1,
        recovering=recovering([work]),
    )
    assert found[0].text.startswith("Broker 3 is down")
    assert found[0].advice == "Wait: broker 3 is starting, and 1,200 of its 5,000 logs are open. See Work in progress."
    (shown_work,) = shown([work])
    assert (shown_work["unit"], shown_work["rate"], shown_work["remainingMs"]) == ("logs", 20, 190_000)


def test_work_that_has_done_nothing_yet_has_no_rate() -> None:
    work = DescribeBackgroundWorkResponse.Work(
        kind=HEALING, broker_id=1, topic="t", partition_index=0, log_dir="/d", done=0, total=2, elapsed_ms=5000
    )
    assert [(one["rate"], one["remainingMs"]) for one in shown([work])] == [(None, None)]


def test_health_of_a_good_cluster() -> None:
    assert [level for level, _ in _texts([PartitionState("a", 0, 1, [1, 2], [1, 2])], {1, 2})] == ["good"]


def test_a_finding_about_a_stopped_broker_names_the_consequences() -> None:
    partitions = [PartitionState("a", 0, 1, [1, 3], [1]), PartitionState("a", 1, 1, [1, 2, 3], [1, 2])]
    ((level, text),) = _texts(partitions, {1, 2})
    assert level == "bad"
    assert text == (
        "Broker 3 is down since 00:00:00 UTC: 2 partitions have lost a replica, and 1 of them has one replica left."
    )


def test_leaderless_partitions_and_a_missing_controller_come_first() -> None:
    found = _texts([PartitionState("a", 0, -1, [3], [3]), PartitionState("b", 0, 1, [1, 2], [1])], {1, 2}, -1)
    assert [level for level, _ in found] == ["bad", "bad", "bad", "warning"]
    assert "1 partition has no leader: a-0." in found[2][1]
    assert "do not keep up" in found[3][1]


def test_the_advice_about_leaderless_partitions_can_be_typed() -> None:
    states = [PartitionState("a", 0, -1, [3], [3]), PartitionState("b", 4, -1, [3, 1], [3])]
    found = findings(states, alive=frozenset({1, 2}), down_since={}, controller=1)
    (advice,) = [each.advice for each in found if "no leader" in each.text]
    assert "parley elect-leaders --election-type unclean --topic b --partition 4." in advice
    assert "If no disk with a-0 is left: start a broker with the id of the lost one on an empty folder." in advice


def _acl(operation: Operation, permission: PermissionType = PermissionType.ALLOW, host: str = "*") -> AclBinding:
    pattern = ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, "t")
    return AclBinding(pattern, "User:a", host, operation, permission)


def test_why() -> None:
    assert not decide([], Operation.READ)[0]
    assert decide([_acl(Operation.READ)], Operation.READ)[0]
    assert decide([_acl(Operation.WRITE)], Operation.DESCRIBE)[:2] == (True, "WRITE implies it.")
    allowed, _, acls = decide([_acl(Operation.ALL), _acl(Operation.READ, PermissionType.DENY)], Operation.READ)
    assert (allowed, acls) == (False, [_acl(Operation.READ, PermissionType.DENY)])
    assert "from some hosts only" in decide([_acl(Operation.READ, host="10.0.0.1")], Operation.READ)[1]


def test_the_built_page_is_that_of_the_sources() -> None:
    """After a change in ``console/``, run ``make console``."""
    built = json.loads(files("parley.tools.console").joinpath("page", "sources.json").read_text())
    folder = Path(__file__).resolve().parents[3] / "console"
    sources = [folder / name for name in ("index.html", "package.json", "package-lock.json", "vite.config.js")]
    sources += [path for path in (folder / "src").rglob("*") if path.is_file()]
    found = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sources}
    assert found == built


@pytest.mark.parametrize(
    ("listen", "listeners"),
    [
        ("127.0.0.1:8091", [Listener("127.0.0.1", 8091)]),
        ("localhost:8091", [Listener("localhost", 8091)]),
        ("[::1]:8091", [Listener("::1", 8091)]),
        ("http://127.0.0.1", [Listener("127.0.0.1", 8090)]),
    ],
)
def test_the_address_needs_no_scheme(listen: str, listeners: list[Listener]) -> None:
    assert prepared(Wanted(bootstrap="a:1", listen=listen)).listeners == listeners


def test_an_error_about_the_address_names_the_option() -> None:
    with pytest.raises(CommandError, match=r"^--listen: 'ftp://a:1' must have the form HTTP://host:8090"):
        prepared(Wanted(bootstrap="a:1", listen="ftp://a:1"))


def test_a_login_in_the_properties_file_is_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    """Users log in with their own; the file may be the one that the commands use."""
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "secret"}
    found = prepared(Wanted(bootstrap="a:1", listen="127.0.0.1:0", properties=properties)).settings
    assert found.needs_login
    assert "sasl.jaas.config" not in found.properties
    assert capsys.readouterr().err.startswith("Warning: sasl.jaas.config in --command-config is not used: users log in")
