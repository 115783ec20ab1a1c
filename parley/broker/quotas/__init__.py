"""Client quotas (KIP-13, 55, 124, 219, 257, 546, 599, 612): the rates that clients are allowed, and their enforcement.

Rules of this package:

* A quota belongs to an entity. ``entities.py`` defines entities and keys, ``validation.py`` checks them. The stored
  quotas are part of the metadata image.
* ``precedence.py`` finds the quota of a request. This happens for every request, so a lookup costs one dictionary
  access.
* ``rates.py`` and ``usage.py`` measure what clients use, without a clock. ``enforcement.py`` throttles clients;
  ``mutations.py`` and ``connection_rates.py`` do the same for topic changes and for connections.
* No code in this package waits: a connection gets its throttle time and mutes itself.
"""
