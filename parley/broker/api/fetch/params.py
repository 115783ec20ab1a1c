"""Who fetches, and what the version of the request says of them."""

from __future__ import annotations

from dataclasses import dataclass

from parley.broker.network.dispatch import RequestContext
from parley.broker.replication.partition import Isolation
from parley.protocol.messages.fetch import FetchRequest

BATCHES_VERSION = 4
"""From this version on the client reads v2 batches; 2 and 3 read magic 1, older ones magic 0."""
SESSIONS_VERSION = 7
FOLLOWER_READS_VERSION = 11
"""From this version on a consumer may read from a follower (KIP-392)."""
CURRENT_LEADER_VERSION = 12
TOPIC_IDS_VERSION = 13
REPLICA_STATE_VERSION = 15
NODE_ENDPOINTS_VERSION = 16


@dataclass(frozen=True, slots=True)
class Reader:
    """Who fetches: a follower names its broker and that broker's epoch."""

    replica: int
    broker_epoch: int
    isolation: Isolation

    @property
    def is_follower(self) -> bool:
        """Whether what it has counts for the high watermark."""
        return self.replica >= 0


def reader_of(context: RequestContext, request: FetchRequest) -> Reader:
    """Who sends this request."""
    if context.api_version >= REPLICA_STATE_VERSION:
        replica, epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
    else:
        replica, epoch = request.replica_id, -1
    if replica >= 0:
        return Reader(replica, epoch, Isolation.LOG_END)
    committed = request.isolation_level == 1
    return Reader(replica, epoch, Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED)
