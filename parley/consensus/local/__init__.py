"""The embedded store: several processes on one machine share one directory. ``local:///path/to/directory``.

::

    store.db  store.db-wal  store.db-shm    the state, in SQLite's WAL mode          (database.py)
    live/<process>                          a named pipe held open by each process   (other_processes.py)

**Transactions.** A transaction is one SQL statement: its checks and operations are put into temporary tables of the
connection, and an insert fires triggers that expire what is due, look at the checks and apply the operations. So the
write lock is held for some 30 microseconds of C, never while Python runs or waits for the disk.

**Durability.** SQLite commits without syncing (``synchronous=NORMAL``); the worker thread then calls ``fdatasync`` on
the WAL, once for all the commits of a batch, before anybody is answered. Readers and watchers do the same before they
give away what they saw of others. So whatever anybody was told survives a power failure, as with ``synchronous=FULL``,
but no process waits for the disk with the lock in its hand.

**Sessions.** A row with the monotonic time of its last renewal (``CLOCK_MONOTONIC`` is one clock for the whole
machine; the boot id is stored, and another boot ends all sessions). Every write transaction first expires sessions
that are past their TTL, then refuses puts bound to sessions that do not exist. Wall-clock time is used nowhere.

**Death.** A process holds the read end of its pipe as long as it lives; the kernel closes it when it is killed, and
every other process, holding a write end, is told at once and ends its sessions. A process that is stopped is found out
by its TTL.

**News.** After a commit one byte is written to every neighbour's pipe; those look into the database if they watch
anything. Should the committer be killed in between, its death is the news; should it be stopped, a look once a second
finds it.

**A process stopped while it holds the write lock** would stop the store for everybody. Whoever finds the lock held for
a quarter of a second by a stopped process of the same user resumes it until the lock is free, and stops it again
(stopped_lock_holder.py).

**Another store in place.** The file's inode and the identity inside are compared at every use: a deleted, replaced or
overwritten store raises ``WrongStore`` and ends all sessions.

Needs a local filesystem on Linux (elsewhere it works, but only the TTL tells of a killed process).
"""

from parley.consensus.local.backend import LocalBackend

__all__ = ["LocalBackend"]
