"""Client quotas (KIP-13, 55, 124, 219, 257, 546, 599, 612): which rates clients have, and what holds them to these.

Rules of this room:

* A quota belongs to an entity; ``entities.py`` defines entities, keys and what is valid. The stored quotas are part of
  the metadata image.
* ``client_quotas.py`` finds the quota of a request. Every request asks it, so a lookup costs one dictionary access.
* ``rates.py`` and ``usage.py`` measure what clients use, without a clock of their own. ``enforcement.py`` throttles;
  ``mutations.py`` and ``connection_rates.py`` do so for changes of topics and for connections.
* Nothing here waits: a connection is told for how long it is throttled, and mutes itself.
"""
