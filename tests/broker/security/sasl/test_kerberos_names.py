"""Rules for Kerberos principals have the same meaning as in Apache Kafka."""

from __future__ import annotations

import base64
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.security.sasl.kerberos_names import NoShortName, ShortNames
from tests.support.kafka_answers import computed_by_kafka

REALM = "REALM.COM"
APP = (r"RULE:[1:$1](App\..*)s/App\.(.*)/$1/g", r"RULE:[2:$1](App\..*)s/App\.(.*)/$1/g", "DEFAULT")
LOWER = (
    "RULE:[1:$1]/L",
    "RULE:[2:$1](Test.*)s/ABC///L",
    "RULE:[2:$1](ABC.*)s/ABC/XYZ/g/L",
    r"RULE:[2:$1](App\..*)s/App\.(.*)/$1/g/L",
    "RULE:[2:$1]/L",
    "DEFAULT",
)
UPPER = tuple(rule.removesuffix("L") + "U" if rule.endswith("/L") else rule for rule in LOWER)
HADOOP = (r"RULE:[2:$1@$0]([nd]n@.*REALM\.COM)s/.*/hdfs/", r"RULE:[1:$1@$0](.*@OTHER)s/(.*)@(.*)/\$1$2_$1/", "DEFAULT")


@pytest.mark.parametrize(
    ("rules", "principal", "name"),
    [
        (APP, "App.service-name/example.com@REALM.COM", "service-name"),
        (APP, "App.service-name@REALM.COM", "service-name"),
        (APP, "user/host@REALM.COM", "user"),
        (LOWER, "User@REALM.COM", "user"),
        (LOWER, "TestABC/host@FOO.COM", "test"),
        (LOWER, "ABC_User_ABC/host@FOO.COM", "xyz_user_xyz"),
        (LOWER, "App.SERVICE-name/example.com@REALM.COM", "service-name"),
        (LOWER, "User/root@REALM.COM", "user"),
        (UPPER, "User@REALM.COM", "USER"),
        (UPPER, "TestABC/host@FOO.COM", "TEST"),
        (UPPER, "ABC_User_ABC/host@FOO.COM", "XYZ_USER_XYZ"),
        (UPPER, "App.SERVICE-name/example.com@REALM.COM", "SERVICE-NAME"),
        (HADOOP, "nn/host@REALM.COM", "hdfs"),
        (HADOOP, "bob@OTHER", "$1OTHER_bob"),
    ],
)
def test_the_examples_of_kafka_and_hadoop(rules: tuple[str, ...], principal: str, name: str) -> None:
    assert ShortNames(rules, REALM).name_of(principal) == name


@pytest.mark.parametrize(
    ("rules", "principal", "reason"),
    [
        (("DEFAULT",), "alice@OTHER", "no rule of"),
        (("DEFAULT",), "alice/a/b@REALM.COM", "is not of the form"),
        (("DEFAULT",), r"admin\@REALM.COM@EVIL", "is not of the form"),
        (("DEFAULT",), r"admin\/x@REALM.COM", "is not of the form"),
        (("DEFAULT",), "alice", "is not of the form"),
        (("DEFAULT",), "@REALM.COM", "an empty name"),
        (("RULE:[1:$1]s/.*//", "DEFAULT"), "alice@REALM.COM", "an empty name"),
        (("RULE:[1:$1@$0]", "DEFAULT"), "alice@REALM.COM", "which is not a user name"),
        (("RULE:[2:$1]",), "alice@REALM.COM", "no rule of"),
        (("RULE:[0:x]", "RULE:[3:$3]"), "alice@REALM.COM", "no rule of"),
    ],
)
def test_principals_that_get_no_name(rules: tuple[str, ...], principal: str, reason: str) -> None:
    with pytest.raises(NoShortName, match=reason):
        ShortNames(rules, REALM).name_of(principal)


MALFORMED = (
    "default", "DEFAUL", "DEFAULT/L", "DEFAULT/g", "rule:[1:$1]", "rule:[1:$1]/L/U", "rule:[1:$1]/U/L",
    "rule:[1:$1]/LU", "RULE:[1:$1/L", "RULE:[1:$1]/l", "RULE:[2:$1](ABC.*)s/ABC/XYZ/L/g", "RULE:[:$1]",
    "RULE:[1:$1](x[)", "", "RULE:[1:$1] ", "RULE:[1:$1]s/(/x/",
)  # fmt: skip
"""Rules that Kafka refuses, too."""


@pytest.mark.parametrize(
    "rule", [*MALFORMED, "RULE:[1:$a]", "RULE:[1:$2]", "RULE:[1:$1]s/(a)/$2/", "RULE:[1:$1]s/a/$/", "RULE:[1:x]s/a/\\/"]
)
def test_malformed_rules(rule: str) -> None:
    with pytest.raises(ValueError, match=r"RULE|DEFAULT"):
        ShortNames([rule], REALM)


@given(st.text(), st.sampled_from([APP, LOWER, UPPER, HADOOP, ("DEFAULT",)]))
def test_no_principal_gets_a_name_that_looks_like_another_principal(principal: str, rules: tuple[str, ...]) -> None:
    try:
        name = ShortNames(rules, REALM).name_of(principal)
    except NoShortName:
        return
    assert name
    assert "/" not in name
    assert "@" not in name


@given(st.from_regex(r"[^/@\\]+", fullmatch=True), st.from_regex(r"[^/@\\]+", fullmatch=True))
def test_the_default_rule_covers_the_default_realm_only(name: str, realm: str) -> None:
    names = ShortNames(["DEFAULT"], REALM)
    assert names.name_of(f"{name}@{REALM}") == names.name_of(f"{name}/host@{REALM}") == name
    if realm != REALM:
        with pytest.raises(NoShortName):
            names.name_of(f"{name}@{realm}")


def generated(seed: int) -> list[tuple[str, tuple[str, ...]]]:
    """Principals, each with rules, as an operator may write them."""
    of = random.Random(seed)

    def rule() -> str:
        form = of.choice(("$1", "$1@$0", "$0_$1", "x$1", "$1$1"))
        pattern = of.choice(("", "(.*)", "(a.*)", r"(.*@REALM\.COM)", "([a-c]+)", r"(\w+@.*)"))
        source = of.choice(("", "a", "@.*", r"\w", "^.", "b*", "[ac]", r"a(b)?"))
        target = of.choice(("", "x", "$0", "A-", r"\$", "/" if of.random() < 0.1 else "y"))
        change = f"s/{source}/{target}/{of.choice(('', 'g'))}" if source else ""
        return f"RULE:[{of.choice('112')}:{form}]{pattern}{change}{of.choice(('', '', '/L', '/U', 'L'))}"

    def principal() -> str:
        name = "".join(of.choices("abcAB.-é", k=of.randint(1, 5)))
        host = of.choice(("", "", "/host", "/b"))
        return f"{name}{host}@{of.choice((REALM, REALM, 'OTHER'))}"

    rules = [(rule(), *of.choice(((), ("DEFAULT",), (rule(),)))) for _ in range(200)]
    return [(principal(), each) for each in rules for _ in range(5)]


CASES = [*generated(1), *(("alice@REALM.COM", (rule,)) for rule in MALFORMED if rule)]


def ours(principal: str, rules: tuple[str, ...]) -> str:
    """What the rules make of a principal, in the form of ``KafkaShortNames.java``."""
    try:
        names = ShortNames(rules, REALM)
    except ValueError:
        return "!"
    try:
        return "=" + encoded(names.name_of(principal))
    except NoShortName as error:
        return "=" if "an empty name" in str(error) else "-"  # with an empty name, Kafka lets a client in


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.system
def test_kafka_gives_the_same_names() -> None:
    program = Path(__file__).with_name("KafkaShortNames.java")
    lines = (" ".join(map(encoded, (principal, *rules))) for principal, rules in CASES)
    printed = computed_by_kafka(program, stdin="\n".join(lines) + "\n").splitlines()
    found = [ours(*case) for case in CASES]
    assert [each for each in zip(CASES, found, printed, strict=True) if each[1] != each[2]] == []
    assert sum(each.startswith("=") for each in found) > len(found) / 4
