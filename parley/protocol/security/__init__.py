"""Authentication and encryption, as clients and brokers share them."""
