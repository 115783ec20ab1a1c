"""The rules of ssl.principal.mapping.rules, with the examples of KIP-371 and of Kafka's own tests."""

from __future__ import annotations

import pytest

from parley.broker.security.tls.principal_mapping import NoRuleMatches, PrincipalMapping

KIP_371 = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U,"
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("name", "mapped"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems", "OU=JavaSoft,O=Sun Microsystems"),
    ],
)
def test_the_first_rule_that_matches_counts(name: str, mapped: str) -> None:
    assert PrincipalMapping(KIP_371).name_of(name) == mapped
    assert PrincipalMapping(f"  {KIP_371.replace(',RULE', ' ,  RULE')}").name_of(name) == mapped


@pytest.mark.parametrize(
    ("rules", "name", "mapped"),
    [
        ("DEFAULT", "CN=a", "CN=a"),
        ("", "CN=a", None),
        ("RULE:^CN=(.*)$/$1/", "OU=a", None),
        ("RULE:^CN=(.*)$/$1/L", "CN=ABC", "abc"),
        (r"RULE:^CN=(.*?)\/(.*)$/$2\/$1/", "CN=a/b", "b/a"),
        (r"RULE:^CN=(?<x>.*)$/\$1/".replace("?<", "?P<"), "CN=a", "$1"),
        ("RULE:^CN=.*$/$1/", "CN=a", "$1"),
        ("RULE:^CN=(?P<first>.).*$/${first}/", "CN=ab", "a"),
        ("RULE:CN=(.*)/$1/", "xCN=a", None),
    ],
)
def test_a_rule(rules: str, name: str, mapped: str | None) -> None:
    mapping = PrincipalMapping(rules)
    if mapped is None:
        with pytest.raises(NoRuleMatches, match="matches"):
            mapping.name_of(name)
    else:
        assert mapping.name_of(name) == mapped


@pytest.mark.parametrize(
    "rules", ["default", "DEFAULT/L", "RULE:CN=(.*)", "RULE:/", "RULE:CN=(/$1/", "DEFAULT,DFAULT", "RULE:a/${b}/"]
)
def test_a_malformed_rule_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"rule|expression|group"):
        PrincipalMapping(rules)
