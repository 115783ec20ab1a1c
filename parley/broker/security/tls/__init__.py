"""TLS on the server's side: what a listener presents and trusts, and the principals of certificates."""
