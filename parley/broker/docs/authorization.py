"""Generates ``docs/authorization.md``: which operation on which resource each API requires."""

from __future__ import annotations

from typing import Final

from parley.broker.security.requirements import OPEN_TO_ALL, REQUIREMENTS, Effect, Requirement
from parley.broker.security.resources import SUPPORTED_OPERATIONS, ResourceType
from parley.protocol.messages import APIS

_INTRODUCTION: Final = """\
# Authorization

`make docs` generates this page from the table in `parley/broker/security/requirements.py`. The checks of rights on the
cluster as a whole come from the table, too. The other checks are code, which may not check any right that the table
does not declare.

With `authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer` a broker checks each request
against the cluster's ACLs, by Kafka's rules:

* An ACL allows or denies a principal an operation on resources, from some hosts. `User:*` is every user, `*` every
  host or every name; a host can be a range of addresses (`10.0.0.0/8`), and a pattern can be a prefix of names.
* One ACL that denies outweighs all that allow. What no ACL allows is denied, unless no ACL concerns the resource and
  `allow.everyone.if.no.acl.found` is true.
* Allowing Read, Write, Delete or Alter also allows Describe; allowing AlterConfigs also allows DescribeConfigs.
* `super.users` may do everything. The principals of the brokers belong there: a broker that starts has no ACLs yet when
  the controller asks it for its logs.
* Topics that a client may not describe do not exist for it: no response names them.

`parley acls` changes the ACLs, as kafka-acls does. All brokers apply a change before the response, or within a
second. Denied operations are in the broker's log as `denied`, with the principal, the address, the operation, the
resource and the rule that decided; allowed ones are logged at the level DEBUG of `parley.broker.security.audit`.

Another authorizer is a subclass of `parley.broker.security.authorizer.Authorizer`, named by an entry point of the
group `parley.authorizers` or as `package.module.Class`. It is asked for the checks below, for
ClusterAction of clients that call themselves brokers, and for the authorized operations that a response lists
(KIP-430).

## Differences from Apache Kafka

* A host can be a range of addresses. Kafka 4.3 stores such a host, and it never matches.
* `*` also matches names that begin with `*`. In Kafka it does not, and neither allows nor denies them.
* Both SCRAM mechanisms of a user can be changed in one request.
"""


def authorization_page() -> str:
    """Return the whole page, as Markdown."""
    lines = [_INTRODUCTION, "## Operations", "", "| resource | operations |", "|---|---|"]
    for type, operations in SUPPORTED_OPERATIONS.items():
        lines.append(f"| {_pascal(type.name)} | {', '.join(_pascal(each.name) for each in operations)} |")
    lines += [
        "",
        "`All` stands for all of them.",
        "",
        "## What each request needs",
        "",
        "| API | operation | resource | which | without it |",
        "|---|---|---|---|---|",
    ]
    lines += [_line(row) for row in sorted(REQUIREMENTS, key=lambda row: row.api_key)]
    lines += ["", "## What every client may send", "", "| API | |", "|---|---|"]
    lines += [f"| {APIS[key].name} | {why} |" for key, why in sorted(OPEN_TO_ALL.items())]
    lines += ["", "A request that is in neither table is refused.", ""]
    return "\n".join(lines)


def _line(row: Requirement) -> str:
    which = row.names if row.type is not ResourceType.CLUSTER else ""
    note = f"{which}; {row.note}" if which and row.note else which or row.note
    effect = row.effect.value
    if row.effect in (Effect.REFUSED, Effect.ELEMENT):
        effect = f"{effect}: {row.error.name}"
    return f"| {row.api} | {_pascal(row.operation.name)} | {_pascal(row.type.name)} | {note} | {effect} |"


def _pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
