"""Consul's KV store behind the interface. ``consul://host:8500[,host:8500...][/prefix][?option=value...]``.

::

    <prefix>/identity            the store's name, 32 hexadecimal digits
    <prefix>/identity/<name>     there for as long as the store is this one: every transaction asks for it
    <prefix>/keys/<key>          the keys; those bound to a session are locked by it

**Transactions.** A call is one request to ``/v1/txn`` (transactions.py): the identity, the checks (``check-index``,
``check-not-exists``, ``get``), the operations. Consul applies all of it as one entry of its log, or nothing. Locks are
advisory there and a plain write would keep them, so a put is ``delete`` and then ``set`` or ``lock``: it takes a key
over whoever held it. Revisions are ModifyIndex. Consul gives no new one to a write that changes nothing, so every
write carries a random number in ``Flags``.

**Sessions.** Consul's own, with no health checks, ``Behavior=delete`` and no lock-delay; ``lock`` names the session, so
the store itself refuses what is bound to one that is over. Consul takes TTLs from 10 s (``session_ttl_min`` of its
configuration) and lets up to twice the TTL pass; after a change of its leader the time begins anew.

**Watches.** A blocking query on the names below a prefix says that there is something new, and a transaction (which
also asks for the identity) says what (watch.py): blocking queries do not tell what was deleted, nor from which store
the answer is. An index that went back is asked from the beginning again. Watches of a prefix share one query, and
queries are few, because an agent gives a client address 200 connections.

**Reads** are ``?consistent``, through the leader; ``STALE`` ones are ``?stale``.

**What a refusal means** (http_client.py). 403: Unauthorized. 429, 500 "No cluster leader": not applied. Any other failure
after a write was sent: MaybeApplied.

**Why aiohttp and not py-consul**: py-consul's asyncio client sends through aiohttp with its defaults, and aiohttp
repeats a PUT whose connection broke. A transaction that was applied and then repeated is answered with a failed check:
"not applied", which is a lie. Here a request is sent once. py-consul also hides the status and the index, which decide
what a failure means.
"""

from parley.consensus.consul.backend import ConsulBackend

__all__ = ["ConsulBackend"]
