"""Authentication and encryption, shared by clients and brokers."""
