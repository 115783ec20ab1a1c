"""Layer 2: KIP-30's four services, written once over any backend.

Where they keep their state, so that several can share one store (see each module for the keys below its folder)::

    data/...          KeyValue
    elections/...     Elections
    groups/...        Groups, members
    incarnations/...  Groups, counters that outlive the members

Every value in these folders is in the envelope of ``recipes.settled_write``.
"""
