"""What the conformance kit needs: a real server, and faults."""

from parley_postgresql.proving.harness import PostgresqlHarness
from parley_postgresql.proving.server import PostgresqlServer, running

__all__ = ["PostgresqlHarness", "PostgresqlServer", "running"]
