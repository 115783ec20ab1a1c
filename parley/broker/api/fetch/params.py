"""The parameters of one fetch: the request, the client that sent it, and what its version can express."""

from __future__ import annotations

from typing import NamedTuple

from parley.broker.network.request_context import RequestContext
from parley.broker.replication.partition import Isolation
from parley.protocol.messages.fetch import FetchRequest

BATCHES_VERSION = 4
"""The first version of Fetch whose clients read v2 batches. Clients of versions 2 and 3 read message format 1, and
older clients format 0."""
SESSIONS_VERSION = 7
FOLLOWER_READS_VERSION = 11
"""The first version of Fetch in which a consumer may read from a follower (KIP-392)."""
CURRENT_LEADER_VERSION = 12
TOPIC_IDS_VERSION = 13
REPLICA_STATE_VERSION = 15
NODE_ENDPOINTS_VERSION = 16


class FetchParams(NamedTuple):
    """One fetch request. ``replica_id`` and ``broker_epoch`` identify a follower. A consumer's ``replica_id`` is
    negative. ``broker_epoch`` is -1 if it is unknown."""

    context: RequestContext
    request: FetchRequest
    replica_id: int
    broker_epoch: int
    isolation: Isolation
    is_follower: bool
    """True if the client is a follower. The high watermark then depends on its fetch offset."""
    may_read_follower: bool
    """True if the fetch may be served from a partition that this broker follows."""


def params_of(context: RequestContext, request: FetchRequest) -> FetchParams:
    """Return the parameters of a request, taken from the fields that its version has."""
    version = context.api_version
    if version >= REPLICA_STATE_VERSION:
        replica_id, epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
    else:
        replica_id, epoch = request.replica_id, -1
    if replica_id >= 0:
        return FetchParams(context, request, replica_id, epoch, Isolation.LOG_END, True, False)
    isolation = Isolation.READ_COMMITTED if request.isolation_level == 1 else Isolation.READ_UNCOMMITTED
    return FetchParams(context, request, replica_id, epoch, isolation, False, version >= FOLLOWER_READS_VERSION)
