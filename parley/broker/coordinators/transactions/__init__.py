"""The transaction coordinator (KIP-98): the state of transactional ids, and the markers that end transactions."""
