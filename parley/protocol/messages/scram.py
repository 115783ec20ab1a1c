"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

Mechanisms: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.
"""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, i8, i16, i32


class DescribeUserScramCredentialsRequest(Request, key=50, versions="0", flexible="0+"):
    """Request the SCRAM mechanisms for which users have credentials. The credentials themselves are never returned."""

    class UserName(Struct):
        """A user whose mechanisms are requested."""

        name: str

    users: list[UserName] | None  # None: all


class DescribeUserScramCredentialsResponse(Response, key=50, versions="0", flexible="0+"):
    """The mechanisms and iterations of each user."""

    class DescribeUserScramCredentialsResult(Struct):
        """A user and the mechanisms of its credentials."""

        user: str
        error_code: i16 = 0
        error_message: str | None = None
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo]

    class CredentialInfo(Struct):
        """The mechanism of a credential, and its iterations."""

        mechanism: i8
        iterations: i32

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    results: list[DescribeUserScramCredentialsResult]


class AlterUserScramCredentialsRequest(Request, key=51, versions="0", flexible="0+"):
    """Set and delete SCRAM credentials. The client salts the password; the broker never receives it."""

    class ScramCredentialDeletion(Struct):
        """A credential to delete, by its user and mechanism."""

        name: str
        mechanism: i8

    class ScramCredentialUpsertion(Struct):
        """A credential to set, with the salted password."""

        name: str
        mechanism: i8
        iterations: i32
        salt: bytes
        salted_password: bytes

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


class AlterUserScramCredentialsResponse(Response, key=51, versions="0", flexible="0+"):
    """The outcome for each user."""

    class AlterUserScramCredentialsResult(Struct):
        """The outcome for one user."""

        user: str
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    results: list[AlterUserScramCredentialsResult]
