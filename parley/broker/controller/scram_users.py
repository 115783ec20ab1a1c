"""Decisions about the SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field

from parley.broker.controller.decision import Decision
from parley.broker.metadata.changes import Change, ClusterSecretSet, ScramUserReplaced
from parley.broker.metadata.feature_support import SECURITY, check_all_support
from parley.broker.metadata.image import MetadataImage
from parley.broker.security.login_credentials import DECOY_SECRET
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential, credential_of

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""The mechanisms, by their numbers in the APIs."""

SECRET_BYTES = 32
"""The length of the secret from which decoys are derived. The secret comes from the operating system, not from the
injected random number generator."""


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    """A request to delete one credential. ``mechanism`` is its number in the API (see ``MECHANISMS``)."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """A request to set one credential. The client has salted the password."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes = field(repr=False)


ScramAlteration = ScramDeletion | ScramUpsertion


def alter_scram_users(
    image: MetadataImage, wanted: Sequence[ScramAlteration], new_secret: Callable[[], bytes]
) -> Decision[dict[str, KafkaError | None]]:
    """Set and delete credentials. The result has an error or None for each user. A user with an error keeps all
    credentials.

    With the first credential, the cluster also gets a secret from ``new_secret()``: the credentials of nonexistent
    users, which serve as decoys, are derived from it.

    Raises UNSUPPORTED_VERSION if a broker of the cluster cannot read credentials.
    """
    check_all_support(SECURITY, image)
    counts = Counter((each.user, each.mechanism) for each in wanted)
    outcomes: dict[str, KafkaError | None] = {}
    users: dict[str, dict[str, ScramCredential]] = {}
    for each in wanted:
        outcomes.setdefault(each.user, None)
        if outcomes[each.user] is not None:
            continue
        try:
            if counts[each.user, each.mechanism] > 1:
                raise KafkaError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            credentials = users.setdefault(each.user, dict(image.scram_users.get(each.user, {})))
            _alter(credentials, each)
        except KafkaError as error:
            outcomes[each.user] = error
            users.pop(each.user, None)
    changes: list[Change] = [
        ScramUserReplaced(user, credentials)
        for user, credentials in users.items()
        if credentials != image.scram_users.get(user, {})
    ]
    if changes and DECOY_SECRET not in image.secrets:
        changes.append(ClusterSecretSet(DECOY_SECRET, new_secret()))
    return Decision(tuple(changes), outcomes)


def _alter(credentials: dict[str, ScramCredential], wanted: ScramAlteration) -> None:
    mechanism = MECHANISMS.get(wanted.mechanism)
    if not wanted.user:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(wanted, ScramDeletion):
        if credentials.pop(mechanism, None) is None:
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        return
    if wanted.iterations < ITERATIONS_MIN:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if wanted.iterations > ITERATIONS_MAX:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not wanted.salt:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Empty salt")
    if not wanted.salted_password:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Empty salted password")
    credentials[mechanism] = credential_of(mechanism, wanted.salted_password, wanted.salt, wanted.iterations)
