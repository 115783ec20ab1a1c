"""Layer 2: the four services of KIP-30, written once for every backend.

Each service keeps its state in separate folders, so that all of them can share one store. The modules describe the
keys::

    data/...          KeyValue
    elections/...     Elections
    groups/...        Groups, members
    incarnations/...  Groups, counters that outlive the members

Every value in these folders is stored in an envelope (``recipes.settled_write``).
"""
