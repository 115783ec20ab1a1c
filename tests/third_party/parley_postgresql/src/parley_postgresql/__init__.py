"""PostgreSQL as a coordination store of Parley: ``postgresql://user@host:5432,host2:5432/database?schema=parley``.

Each call is one statement; a call of several steps is a function in the server (``schema.py``). So a client that is
stopped or killed never holds a lock. README.md, "How it works", explains revisions, sessions, watches and the fate of
a write whose response was lost.
"""

from parley_postgresql.backend import PostgresqlBackend

__all__ = ["PostgresqlBackend"]
