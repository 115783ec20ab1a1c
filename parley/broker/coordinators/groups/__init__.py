"""The group coordinator: groups of all types, their members and assignments, and their committed offsets.

``classic/``, ``consumer/`` (KIP-848), ``share/`` (KIP-932) and ``streams/`` (KIP-1071) contain the decisions about
groups of these types. Static members (KIP-345) of a classic group are handled in ``classic/member_decisions.py``
(``_replace_static``), ``classic/membership.py`` (``static_ids``, ``put_in_place``) and ``classic/rebalance.py``
(``replace_static``). Static members of a consumer group are handled in ``consumer/member_steps.py``
(``require_static``) and ``consumer/group_change.py`` (``replace_static``). Share and streams groups have no static
members, as in Kafka 4.3.
"""
