"""etcd, version 3.4 and later: ``etcd://host:2379,host2:2379/prefix``, over gRPC.

::

    <prefix>/identity       the store's random name, written once
    <prefix>/data/<key>     the entries; one bound to a session is attached to its lease

**Which store it is.** Every request is a transaction that compares the identity first, reads included: a store that was
wiped cannot answer anything else than that. One put back from a backup answers with a revision lower than one that was
seen before. Either raises ``WrongStore`` and ends the client for good.

**Revisions** are etcd's ``mod_revision``: one number for all the keys, never used twice. A refused transaction reads
the keys of its checks in its other branch, so the error is of the same moment as the refusal.

**Sessions** are leases, renewed every third of the TTL. etcd refuses a put to a lease it does not know, within the
transaction. It counts in seconds, looks for expired leases twice a second, and begins a lease's time anew when its own
leader changes: keys can stay for longer than the TTL, never for less.

**Watches.** A read at a revision, then etcd's watch from the next one; after a broken stream, from behind the last
revision that came whole. Where etcd has compacted that away, another read: a new Snapshot. etcd takes a revision of the
future without a word, so the identity is asked for on every new stream; and before a deletion is told to anybody, since
somebody may be deleting everything. One stream for each watch: flow control holds up those only that nobody iterates.

**Fate of a write.** Not applied, and sent again while there is time, are those that could not be sent and those refused
before etcd proposed them (no leader, overload, a token that ran out). Everything else without an answer is
``MaybeApplied``: a broken stream, a timeout, and also a full database, which refuses some writes after applying them.

**Connection.** One at a time, to one of the servers: to the next as soon as it breaks, leaves a request without an
answer, or says that it has no leader. gRPC itself would stay with a server that accepts connections and nothing else.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it would print to standard error is in the errors we raise

from parley.consensus.etcd.backend import EtcdBackend

__all__ = ["EtcdBackend"]
