"""``parley delegation-tokens``: create, renew, expire and show delegation tokens, as kafka-delegation-tokens does."""

from __future__ import annotations

import binascii
import sys
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parley.broker.security.principal import Principal
from parley.tools.cli.app import App
from parley.tools.cli.cluster_client import check, on_cluster
from parley.tools.cli.common_options import (
    DEFAULT_BOOTSTRAP,
    CommandConfig,
    OnlyBootstrapServer,
    OutputFormat,
    one_action,
    required,
)
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import print_data

if TYPE_CHECKING:
    from parley.protocol.client import Client

app = App(
    "Create, renew, expire and show delegation tokens: short-lived credentials that a user hands to programs.\n\n"
    "The brokers need delegation.token.secret.key, and the client of this command must log in. A program logs in with "
    "SCRAM: the token's id is its user name, the HMAC its password, and the JAAS line has tokenauth=true.",
    examples=[
        (
            "parley delegation-tokens --create --renewer-principal User:scheduler --command-config alice.properties",
            "a token for alice, which the scheduler may renew",
        ),
        ("parley delegation-tokens --describe --command-config alice.properties", "the tokens that alice may see"),
        (
            "parley delegation-tokens --expire --hmac HMAC --expiry-time-period -1 --command-config alice.properties",
            "remove a token immediately",
        ),
    ],
)

_HEADINGS: Final = ("TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE")
_FORM: Final = "{:<15} {:<30} {:<15} {:<15} {:<25} {:<15} {:<15} {:<15}"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley delegation-tokens``, as given on the command line."""

    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP
    create: Annotated[bool, typer.Option("--create", help="Create a token.")] = False
    renew: Annotated[bool, typer.Option("--renew", help="Extend the expiry of a token.")] = False
    expire: Annotated[bool, typer.Option("--expire", help="Let a token expire earlier, or remove it.")] = False
    describe: Annotated[bool, typer.Option("--describe", help="Show tokens.")] = False
    owner_principal: Annotated[
        list[str],
        typer.Option("--owner-principal", help="With --create: for whom; with --describe: whose tokens. User:name."),
    ] = field(default_factory=list)
    renewer_principal: Annotated[
        list[str],
        typer.Option("--renewer-principal", help="With --create: a user, in addition to the owner, that may renew it."),
    ] = field(default_factory=list)
    max_life_time_period: Annotated[
        int, typer.Option("--max-life-time-period", help="With --create: in ms; -1 for as long as the brokers allow.")
    ] = -1
    renew_time_period: Annotated[
        int, typer.Option("--renew-time-period", help="With --renew: in ms from now; -1 for the brokers' default.")
    ] = -1
    expiry_time_period: Annotated[
        int, typer.Option("--expiry-time-period", help="With --expire: in ms from now; -1 to remove the token.")
    ] = -1
    hmac: Annotated[
        str | None,
        typer.Option("--hmac", help="With --renew and --expire: the token's HMAC; - reads it from standard input."),
    ] = None
    command_config: CommandConfig = None
    output_format: OutputFormat = None


@app.only_command_with(Options)
def delegation_tokens(options: Options) -> None:
    action = one_action(create=options.create, renew=options.renew, expire=options.expire, describe=options.describe)
    actions = {"create": _create, "renew": _renew, "expire": _expire, "describe": _describe}
    hmac = _decoded(_read(required(options.hmac, "--hmac", action))) if action in ("renew", "expire") else b""
    owners = [_principal(text) for text in options.owner_principal]

    async def work(client: Client) -> None:
        await actions[action](client, options, hmac, owners)

    on_cluster(options.bootstrap_server, options.command_config, work)


async def _create(client: Client, options: Options, hmac: bytes, owners: list[Principal]) -> None:
    from parley.protocol.messages.delegation_tokens import CreateDelegationTokenRequest as Request

    if len(owners) > 1:
        raise CommandError("A token has one owner: name --owner-principal once.")
    renewers = [_principal(text) for text in options.renewer_principal]
    answer = await client.send(
        Request(
            owner_principal_type=owners[0].kind if owners else None,
            owner_principal_name=owners[0].name if owners else None,
            renewers=[Request.CreatableRenewers(principal_type=r.kind, principal_name=r.name) for r in renewers],
            max_lifetime_ms=options.max_life_time_period,
        )
    )
    check(answer.error_code, doing="The token was not created")
    row = {
        "tokenId": answer.token_id,
        "hmac": b64encode(bytes(answer.hmac)).decode(),
        "owner": f"{answer.principal_type}:{answer.principal_name}",
        "requester": f"{answer.token_requester_principal_type}:{answer.token_requester_principal_name}",
        "renewers": [str(renewer) for renewer in renewers],
        "issuedMs": answer.issue_timestamp_ms,
        "expiresMs": answer.expiry_timestamp_ms,
        "maxMs": answer.max_timestamp_ms,
    }
    if not options.output_format:
        print(f"Created delegation token with tokenId : {answer.token_id}")
    _print([row], options)


async def _renew(client: Client, options: Options, hmac: bytes, owners: list[Principal]) -> None:
    from parley.protocol.messages.delegation_tokens import RenewDelegationTokenRequest

    answer = await client.send(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=options.renew_time_period))
    check(answer.error_code, doing="The token was not renewed")
    print(f"Completed renew operation. New expiry date : {_date(answer.expiry_timestamp_ms)}")


async def _expire(client: Client, options: Options, hmac: bytes, owners: list[Principal]) -> None:
    from parley.protocol.messages.delegation_tokens import ExpireDelegationTokenRequest

    answer = await client.send(
        ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=options.expiry_time_period)
    )
    check(answer.error_code, doing="The token was not changed")
    print(f"Completed expire operation. New expiry date : {_date(answer.expiry_timestamp_ms)}")


async def _describe(client: Client, options: Options, hmac: bytes, owners: list[Principal]) -> None:
    from parley.protocol.messages.delegation_tokens import DescribeDelegationTokenRequest as Request

    requested = [Request.DescribeDelegationTokenOwner(principal_type=o.kind, principal_name=o.name) for o in owners]
    answer = await client.send(Request(owners=requested or None))
    check(answer.error_code, doing="The tokens cannot be shown")
    rows = [
        {
            "tokenId": token.token_id,
            "hmac": b64encode(bytes(token.hmac)).decode(),
            "owner": f"{token.principal_type}:{token.principal_name}",
            "requester": f"{token.token_requester_principal_type}:{token.token_requester_principal_name}",
            "renewers": [f"{each.principal_type}:{each.principal_name}" for each in token.renewers],
            "issuedMs": token.issue_timestamp,
            "expiresMs": token.expiry_timestamp,
            "maxMs": token.max_timestamp,
        }
        for token in answer.tokens
    ]
    if not options.output_format:
        print(f"Total number of tokens : {len(rows)}")
    _print(rows, options)


def _print(rows: list[dict[str, Any]], options: Options) -> None:
    if options.output_format:
        print_data(rows, options.output_format)
        return
    print(_FORM.format(*_HEADINGS).rstrip())
    for row in rows:
        dates = (_date(row[name]) for name in ("issuedMs", "expiresMs", "maxMs"))
        values = (row["tokenId"], row["hmac"], row["owner"], row["requester"], ",".join(row["renewers"]), *dates)
        print(_FORM.format(*values).rstrip())


def _date(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


def _read(hmac: str) -> str:
    """Return the HMAC that the option gives, or read it from standard input, so that other users do not see it among
    the arguments of the process."""
    return sys.stdin.readline().strip() if hmac == "-" else hmac


def _decoded(hmac: str) -> bytes:
    try:
        return b64decode(hmac, validate=True)
    except binascii.Error as error:
        raise CommandError("--hmac takes the HMAC of a token, as --create and --describe print it.") from error


def _principal(text: str) -> Principal:
    try:
        return Principal.parse(text.strip())
    except ValueError as error:
        raise CommandError(f"{error}.") from error
