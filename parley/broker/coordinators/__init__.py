"""The coordinators of groups, transactions and share-group state, the runtime they share, and producer ids."""
