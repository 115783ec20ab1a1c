"""Coordinators of groups, transactions and share state, the runtime they have in common, and producer ids."""
