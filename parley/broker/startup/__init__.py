"""The startup of a broker, one module per phase, in this order:

1. ``binding`` binds the listeners' sockets.
2. ``store`` opens the coordination store, and determines the ids of this broker and of its cluster.
3. ``logs`` opens the logs in the data directories.
4. ``composition`` connects the parts of the broker, which ``foundation``, ``membership``, ``coordinators`` and
   ``replication`` create, in this order.
5. ``credentials`` reads the users that log in. ``serving`` creates the request handlers (``routes``) and accepts
   connections; most requests must wait.
6. ``cluster_joining`` joins the cluster. ``background_tasks`` starts the tasks that run for the broker's whole life. If
   the cluster is new, ``cluster_joining`` adopts the topics found on disk.
7. ``serving`` releases the waiting requests.

A phase receives what it needs as arguments and returns a frozen record of the parts that it has created. It registers
how to undo its work in ``Environment.undo`` as it goes. ``composition`` subscribes the parts in an order that matters.
Parts that only the network side uses are subscribed later, when ``serving`` and ``routes`` create them.
"""
