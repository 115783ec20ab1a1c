"""The server side of TLS: what a listener presents and trusts, and the principals of certificates."""
