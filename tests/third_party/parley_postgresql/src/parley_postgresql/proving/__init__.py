"""A real server and its faults, for the conformance kit."""

from parley_postgresql.proving.harness import PostgresqlHarness
from parley_postgresql.proving.server import PostgresqlServer, running

__all__ = ["PostgresqlHarness", "PostgresqlServer", "running"]
