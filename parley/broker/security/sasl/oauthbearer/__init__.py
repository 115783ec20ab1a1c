"""The OAUTHBEARER mechanism (KIP-255, KIP-768): signed and unsigned tokens, and the keys of their issuers (JWKS)."""
