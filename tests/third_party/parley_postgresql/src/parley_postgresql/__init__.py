"""PostgreSQL as a coordination store of Parley: ``postgresql://user@host:5432,host2:5432/database?schema=parley``.

**One statement for each call.** What has several steps is a function in the server (``schema``). A client that is
stopped or killed can therefore hold no lock: its statement is done by the server, or was never begun.

**Order.** Writers take an advisory lock of the store until they are committed, so that they come one after the other,
and count the store's revision up by one. A sequence of PostgreSQL's would not do: it gives numbers in the order of
asking, not of commits, and a watcher that has seen 7 could not know whether 6 is still to come.

**Which store it is.** Every statement returns the identity and the revision of the store, or refuses another identity.
A schema that is gone, another identity, or a revision lower than one seen before raises ``WrongStore``, for good.

**Sessions** are rows with a counter that their owner counts up, every third of the TTL. PostgreSQL has no clock for
intervals, only one that people set; so every client looks at the counters, and ends a session whose counter has stood
still for its TTL by the client's own monotonic clock, provided that it stands there still (``keeper``).

**Watches** are woken by NOTIFY and read what has a higher revision than they have seen. Deletions leave a row behind;
the oldest of those are forgotten, and a watch that is further behind begins again with a Snapshot.

**Fate of a write.** Refused by an error of the server: not applied. No answer, or the server going down: unknown.
"""

from parley_postgresql.backend import PostgresqlBackend

__all__ = ["PostgresqlBackend"]
