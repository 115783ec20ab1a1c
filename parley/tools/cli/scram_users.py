"""Users that log in with SCRAM, for ``parley configs``, shown and changed as in kafka-configs."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from parley.protocol.errors import ErrorCode
from parley.protocol.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, salted_password
from parley.tools.cli.cluster_client import check
from parley.tools.cli.invocation import CommandError

if TYPE_CHECKING:
    from parley.broker.controller.scram_users import ScramAlteration, ScramDeletion, ScramUpsertion
    from parley.consensus.backend import Backend
    from parley.protocol.client import Client

SALT_BYTES: Final = 16
_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_VALUE: Final = re.compile(r"(?:iterations=([0-9]*),)?password=(.*)", re.DOTALL)

Users = Mapping[str, Mapping[str, int]]
"""The iterations of each credential, by user and mechanism."""


def alterations(user: str, added: Mapping[str, str], removed: Sequence[str]) -> list[ScramAlteration]:
    """Return the changes that ``--add-config`` and ``--delete-config`` request. ``added`` contains the values by
    mechanism, ``removed`` the mechanisms. Each password takes milliseconds to hash.

    Raises ``CommandError`` for values in any other format than ``[iterations=N,password=...]``.
    """
    return [
        *(_deletion(user, mechanism) for mechanism in removed),
        *(_upsertion(user, mechanism, value) for mechanism, value in added.items()),
    ]


def _deletion(user: str, mechanism: str) -> ScramDeletion:
    from parley.broker.controller.scram_users import ScramDeletion

    return ScramDeletion(user, _NUMBERS[mechanism])


def _upsertion(user: str, mechanism: str, value: str) -> ScramUpsertion:
    from parley.broker.controller.scram_users import ScramUpsertion

    match = _VALUE.fullmatch(value)
    if match is None or not match[2]:
        raise CommandError(f"{mechanism} takes [password=...] or [iterations=8192,password=...].")
    iterations = int(match[1] or ITERATIONS_MIN)
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise CommandError(f"{mechanism} takes {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations, not {iterations}.")
    salt = secrets.token_bytes(SALT_BYTES)
    salted = salted_password(mechanism, match[2].encode(), salt, iterations)
    return ScramUpsertion(user, _NUMBERS[mechanism], iterations, salt, salted)


async def alter(client: Client, wanted: Sequence[ScramAlteration]) -> None:
    """Change credentials through a broker. Raises ``CommandError`` if the cluster rejects the request."""
    from parley.broker.controller.scram_users import ScramDeletion, ScramUpsertion
    from parley.protocol.messages.scram import AlterUserScramCredentialsRequest as Request

    answer = await client.send(
        Request(
            deletions=[
                Request.ScramCredentialDeletion(name=each.user, mechanism=each.mechanism)
                for each in wanted
                if isinstance(each, ScramDeletion)
            ],
            upsertions=[
                Request.ScramCredentialUpsertion(
                    name=each.user,
                    mechanism=each.mechanism,
                    iterations=each.iterations,
                    salt=each.salt,
                    salted_password=each.salted_password,
                )
                for each in wanted
                if isinstance(each, ScramUpsertion)
            ],
        )
    )
    for result in answer.results:
        check(result.error_code, result.error_message, doing=f"The user {result.user} was not changed")


async def describe(client: Client, user: str | None) -> Users:
    """Return the credentials of a user, or of all users if ``user`` is None. Omits a user without credentials. Raises
    ``CommandError`` if the cluster rejects the request."""
    from parley.protocol.messages.scram import DescribeUserScramCredentialsRequest as Request

    # With null instead of an empty list, Apache Kafka 4.3 never responds to a user without the right.
    requested = [] if user is None else [Request.UserName(name=user)]
    answer = await client.send(Request(users=requested))
    check(answer.error_code, answer.error_message, doing="The users cannot be shown")
    names = {number: name for name, number in _NUMBERS.items()}
    found: dict[str, dict[str, int]] = {}
    for result in answer.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        check(result.error_code, result.error_message, doing=f"The user {result.user} cannot be shown")
        found[result.user] = {names.get(info.mechanism, "UNKNOWN"): info.iterations for info in result.credential_infos}
    return found


async def alter_in_store(backend: Backend, wanted: Sequence[ScramAlteration]) -> None:
    """Change credentials in a store that no broker uses. Raises ``CommandError`` if a change is not possible."""
    from parley.broker.controller.scram_users import SECRET_BYTES, alter_scram_users
    from parley.tools.coordination.idle_store import change_in_store

    new_secret = partial(secrets.token_bytes, SECRET_BYTES)
    outcomes = await change_in_store(backend, partial(alter_scram_users, wanted=wanted, new_secret=new_secret))
    for user, error in outcomes.items():
        if error is not None:
            check(error.code, error.message, doing=f"The user {user} was not changed")


async def describe_in_store(backend: Backend, user: str | None) -> Users:
    """Return the credentials of a user, or of all users if ``user`` is None, in a store. Omits a user without
    credentials."""
    from parley.tools.coordination.idle_store import image_in_store

    users = (await image_in_store(backend)).scram_users
    return {
        name: {mechanism: credential.iterations for mechanism, credential in sorted(credentials.items())}
        for name, credentials in sorted(users.items())
        if user in (None, name)
    }


def lines(users: Users) -> list[str]:
    """Format users as kafka-configs does."""
    return [
        f"SCRAM credential configs for user-principal '{user}' are "
        + ", ".join(f"{mechanism}=iterations={iterations}" for mechanism, iterations in credentials.items())
        for user, credentials in users.items()
    ]


def as_data(users: Users) -> list[dict[str, Any]]:
    """Return users as JSON data, in the shape of other entities."""
    return [
        {
            "type": "user",
            "name": user,
            "configs": [
                {
                    "name": mechanism,
                    "value": f"iterations={iterations}",
                    "readOnly": False,
                    "sensitive": True,
                    "source": "SCRAM_CREDENTIAL",
                    "synonyms": [],
                }
                for mechanism, iterations in credentials.items()
            ],
        }
        for user, credentials in users.items()
    ]
