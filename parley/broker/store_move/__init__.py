"""The brokers' part in moving a running cluster to another coordination store (``parley.consensus.store_move``).

Every broker has a ``participant``. It watches which store the cluster uses, tests the connection to a new store on
request, and switches to the new store when the cluster has moved. The controller also has a ``driver``, which carries
out a requested move.
"""
