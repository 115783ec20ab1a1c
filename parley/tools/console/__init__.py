"""The web console: a page in a browser that shows a cluster and changes it.

Rules:

1. It is a client: everything about the cluster comes through Kafka's protocol, with the rights of the user who logged
   in. Only the coordination store's content comes from the store itself.
2. It uses the requests of the commands (``parley.tools.cli``); it has no second admin client.
3. Every answer is bounded: lists have pages, records have limits of number, bytes and time.
4. A change needs the session's CSRF token; a read-only console has no changes.
5. Passwords are in memory only, as part of the connections of a session; no page, log or error contains one.
"""
