"""Copies tables of SQL databases to topics, and topics to tables.

The databases are PostgreSQL, SQLite, and any other that SQLAlchemy supports. The configs are those of the well-known
JDBC connectors for Kafka. Tables and columns have their names in the database. Connect's schemas preserve the types of
values.
"""
