"""FetchMetadata, ReportOfflineReplicas, HandOverLeadership and StoreDelegationToken: requests of Parley's brokers to
their controller.

They are not APIs of Apache Kafka: their keys lie far above Kafka's, and clients do not use them. Brokers pull changes
and the controller never pushes them, so no change arrives out of order. FetchMetadata also shows the controller that
the broker is alive and which changes it has applied. Clusters are upgraded broker by broker, so every addition needs a
new version or a tagged field.
"""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i16, i32, i64
from parley.protocol.uuids import UUID


class FetchMetadataRequest(Request, key=1000, versions="0-3", flexible="0+"):
    """Fetch the changes since the sender's image. The controller waits until there is a change.

    Versions:
        1: a broker that is not the controller returns how long it has not heard from the controller.
        2: the sender applies changes to its image even if the image is of an earlier term.
        3: the sender applies changes that follow a whole image in the same response.
    """

    broker_id: i32
    broker_epoch: i64 = -1  # of the sender's registration; -1: not registered yet
    controller_epoch: i32 = -1  # of the sender's image; -1: the sender has no image and requests a whole one
    version: i64 = -1  # of the sender's image
    max_wait_ms: i32


class FetchMetadataResponse(Response, key=1000, versions="0-3", flexible="0+"):
    """The changes in order, or a whole image if the sender's image is too old or unknown to the controller.

    Errors: NOT_CONTROLLER, STALE_BROKER_EPOCH (a later incarnation of the sender is registered). With NOT_CONTROLLER, a
    broker returns the controller that it follows.

    Versions:
        1: silent_ms, with NOT_CONTROLLER.
        2: the first step may lead from the last image of an earlier term to the first image of this one.
        3: changes may follow a whole image.
    """

    class Step(Struct):
        """The changes that lead to the image of one version."""

        version: i64
        changes: bytes  # JSON

    class Term(Struct):
        """A controller's term, with the last metadata version in it."""

        controller_epoch: i32
        controller_id: i32
        version: i64

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    controller_id: i32 = -1
    controller_epoch: i32 = -1
    is_whole: bool = field("0+", default=False)  # the first step contains a whole image, not changes to the sender's
    steps: list[Step] = field("0+", default=[])
    silent_ms: i64 = field("1+", default=-1, ignorable=True)  # since the broker last heard from the controller
    # if the sender's image is not of this term: the earlier terms that the store has kept
    earlier_terms: list[Term] = field("0+", tag=0, tagged="0+", default=[], ignorable=True)


class ReportOfflineReplicasRequest(Request, key=1002, versions="0", flexible="0+"):
    """Report replicas on a failed disk of the sender, which is alive, to the controller."""

    class Topic(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[i32]

    broker_id: i32
    broker_epoch: i64
    topics: list[Topic]


class ReportOfflineReplicasResponse(Response, key=1002, versions="0", flexible="0+"):
    """Confirms that the replicas no longer lead, and have left every ISR that has another member.

    Errors: NOT_CONTROLLER, STALE_BROKER_EPOCH.
    """

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None


class HandOverLeadershipRequest(Request, key=1003, versions="0", flexible="0+"):
    """Ask the controller to elect another leader for partitions whose log is damaged at the sender.

    The sender stays in the ISR, because it has all records outside the damaged ranges. With ``starts_over``, it leaves
    the ISR, the ELR and the last known ELR.
    """

    class Topic(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[i32]

    broker_id: i32
    broker_epoch: i64
    topics: list[Topic]
    # the sender, a follower, deletes these logs and fetches them again
    starts_over: bool = field("0+", tag=0, tagged="0+", default=False, ignorable=True)


class HandOverLeadershipResponse(Response, key=1003, versions="0", flexible="0+"):
    """Confirms that each partition is led by another live member of its ISR, if it has one.

    Errors: NOT_CONTROLLER, STALE_BROKER_EPOCH.
    """

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None


class StoreDelegationTokenRequest(Request, key=1005, versions="0", flexible="0+"):
    """Ask the controller to store a delegation token that the sender has created or changed for a client (KIP-48)."""

    token_id: str
    before: bytes | None  # the token as the sender knows it, as JSON; None: a new token
    after: bytes | None  # None: remove the token


class StoreDelegationTokenResponse(Response, key=1005, versions="0", flexible="0+"):
    """Confirms that the token is stored.

    Errors: NOT_CONTROLLER, DELEGATION_TOKEN_NOT_FOUND if the token is no longer as the sender knew it.
    """

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
