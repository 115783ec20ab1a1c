"""Tables of SQL databases into topics, and topics into tables, by SQLAlchemy: PostgreSQL, SQLite and what else it has.

The keys are those of the JDBC connectors that Kafka's users know. Tables and columns are named as they are in the
database; values keep their types through Connect's schemas.
"""
