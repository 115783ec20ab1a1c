"""The brokers' part in moving a running cluster to another coordination store (``parley.consensus.store_move``).

Every broker has a ``participant``: it watches which store is in charge, tests the connection to a new one when asked,
and switches when the store has moved. The controller also has a ``driver``, which carries out a move on request.
"""
