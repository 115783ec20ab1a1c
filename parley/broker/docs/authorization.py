"""Generates ``docs/authorization.md``: which operation on which resource each API requires."""

from __future__ import annotations

from typing import Final

from parley.broker.security.requirements import OPEN_TO_ALL, REQUIREMENTS, Effect, Requirement
from parley.broker.security.resources import SUPPORTED_OPERATIONS, ResourceType
from parley.protocol.messages import APIS

_INTRODUCTION: Final = """\
# Authorization

`make docs` generates this page from the table in `parley/broker/security/requirements.py`. It describes how a broker
decides what a client may do, and lists the rights that each request needs. Brokers check the rights on the cluster
directly from the table. Other checks are code, which may only check rights that the table declares.

With `authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer` a broker checks each request
against the cluster's ACLs, by Kafka's rules:

* An ACL allows or denies a principal an operation on resources, from some hosts. `User:*` is every user, `*` every
  host or every name; a host can be a range of addresses (`10.0.0.0/8`), and a pattern can be a prefix of names.
* An ACL of type DENY outweighs all of type ALLOW. An operation that no ACL allows is denied, unless no ACL concerns the
  resource and `allow.everyone.if.no.acl.found` is true.
* Allowing Read, Write, Delete or Alter also allows Describe; allowing AlterConfigs also allows DescribeConfigs.
* `super.users` may do everything. Add the brokers' principals to it: a starting broker has no ACLs yet when the
  controller requests the state of its logs.
* A client cannot find out whether a topic exists that it may not describe: the response is the same in both cases, and
  lists leave the topic out.

`parley acls` changes the ACLs, like kafka-acls. The response waits until all brokers have applied the change, but at
most a second. The broker logs a denied operation as `denied`, with the principal, the address, the operation, the
resource and the rule that decided. It logs allowed operations at the level DEBUG of `parley.broker.security.audit`.

To use another authorizer, write a subclass of `parley.broker.security.authorizer.Authorizer`, and name it by an entry
point of the group `parley.authorizers` or as `package.module.Class`. Brokers call it for the checks below, for
ClusterAction of clients that claim to be brokers, and for the authorized operations that a response lists (KIP-430).

## Differences from Apache Kafka

* A host can be a range of addresses. Kafka 4.3 stores such a host, but it never matches.
* `*` also matches names that begin with `*`. In Kafka it neither allows nor denies them.
* Both SCRAM mechanisms of a user can be changed in one request.
"""


def authorization_page() -> str:
    """Return the whole page, as Markdown."""
    lines = [_INTRODUCTION, "## Operations", "", "| resource | operations |", "|---|---|"]
    for type, operations in SUPPORTED_OPERATIONS.items():
        lines.append(f"| {_pascal(type.name)} | {', '.join(_pascal(each.name) for each in operations)} |")
    lines += [
        "",
        "`All` means all of them.",
        "",
        "## What each request needs",
        "",
        "| API | operation | resource | which | without it |",
        "|---|---|---|---|---|",
    ]
    lines += [_line(row) for row in sorted(REQUIREMENTS, key=lambda row: row.api_key)]
    lines += ["", "## What every client may send", "", "| API | |", "|---|---|"]
    lines += [f"| {APIS[key].name} | {why} |" for key, why in sorted(OPEN_TO_ALL.items())]
    lines += ["", "A request that is in neither table is rejected.", ""]
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
