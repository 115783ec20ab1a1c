"""The web console: a browser application that shows and changes a cluster.

Rules:

1. It is a client: everything about the cluster comes through Kafka's protocol, with the permissions of the logged-in
   user. Only the coordination store's content comes from the store itself.
2. It uses the requests of the commands (``parley.tools.cli``); there is no second admin client.
3. Every response is bounded: lists have pages, and records have limits of number, bytes and time.
4. A change needs the session's CSRF token. A read-only console allows no changes.
5. Passwords are kept only in memory, as part of a session's connections. No page, log or error contains one.
"""
