"""The OAUTHBEARER mechanism (KIP-255, KIP-768): tokens, signed or not, and the keys of their issuers (JWKS)."""
