"""Lines about clients: connections, logins, requests, groups, transactions and share groups."""

from __future__ import annotations

from typing import Final

from parley.broker.docs.log_lines.line import DEFECT, NOTHING, Line, Section

_NETWORK: Final = Section(
    "Connections",
    (
        Line(
            "connection closed",
            "A peer violated the protocol or a limit; the line has its address and the `reason`.",
            "Mend that client. A `reason` that names TLS: the client and the listener do not agree on "
            "`security.protocol`.",
        ),
        Line(
            "more connections were closed",
            "As many more within the same second.",
            "As for the lines before.",
        ),
        Line(
            "connections are cut at the end of the grace period",
            "Clients took too long to take their responses while the broker stopped. They connect to other brokers.",
            NOTHING,
        ),
        Line(
            "connections cannot be accepted: raise the limit of open files (ulimit -n, LimitNOFILE) or lower "
            "max.connections; the connections that have been idle longest are closed for those that wait",
            "There is no file descriptor for them.",
            "Raise the limit of open files.",
        ),
        Line(
            "another broker and this one do not accept each other",
            "The certificates or passwords of the listener between brokers differ, for the `reason`.",
            "Give both brokers the same authority and users.",
        ),
        Line(
            "a request cannot be read",
            "The connection of this client is closed.",
            DEFECT,
        ),
    ),
)

_SECURITY: Final = Section(
    "Security",
    (
        Line(
            "authentication failed",
            "A login or a TLS handshake failed; the line has the address, the mechanism, the claimed user and "
            "the `reason`.",
            "Give the client the right credentials. Many lines from one address: an old password, or an attacker "
            "guesses passwords.",
        ),
        Line(
            "a login cannot be evaluated",
            "The login fails.",
            DEFECT,
        ),
        Line(
            "the security of connections between brokers cannot be changed: the previous one stays in use",
            "A certificate or a setting cannot be used, for the `reason`.",
            "Correct it; the broker looks again.",
        ),
        Line(
            "the security of a listener cannot be changed: it stays as it was",
            "A certificate or a setting cannot be used, for the `reason`.",
            "Correct it; the broker looks again.",
        ),
        Line(
            "replaced certificates cannot be used: the old ones stay: ...",
            "Files of certificates have changed and cannot be read.",
            "Correct the files; they are read again.",
        ),
        Line(
            "a revocation list has expired: clients with certificates of its issuer are refused",
            "The line has the `listener`, the `issuer` and when the list expired.",
            "Put a new list into the file; the broker reads it without a restart.",
        ),
        Line(
            "the keys that verify tokens cannot be read",
            "Logins by token use the earlier keys, or fail.",
            "Make the file of the key set readable.",
        ),
        Line(
            "the keys that verify tokens cannot be fetched",
            "Logins by token use the earlier keys, or fail.",
            "Make the address of the key set reachable.",
        ),
        Line(
            "the keys that verify tokens are fetched without TLS: use https, or the network can forge tokens",
            "`sasl.oauthbearer.jwks.endpoint.url` begins with `http:`.",
            "Use an address that begins with `https:`.",
        ),
        Line(
            "the secret of a client is sent to its token endpoint without TLS",
            "`sasl.oauthbearer.token.endpoint.url` begins with `http:`; the line has the `host`.",
            "Use an address that begins with `https:`.",
        ),
        Line(
            "OAUTHBEARER accepts unsigned tokens: any client can log in as any user",
            "No key set is configured. This is for tests.",
            "Set `sasl.oauthbearer.jwks.endpoint.url`, or remove OAUTHBEARER from `sasl.enabled.mechanisms`.",
        ),
    ),
)

_REQUESTS: Final = Section(
    "Requests",
    (
        Line(
            "the controller did not carry out a forwarded request",
            "For the `reason`; clients get UNKNOWN_SERVER_ERROR.",
            "With CLUSTER_AUTHORIZATION_FAILED, add the principal of the brokers to `super.users`, or allow it "
            "ClusterAction on the cluster.",
        ),
        Line(
            "... failed",
            "A request of this API; its client gets UNKNOWN_SERVER_ERROR.",
            DEFECT,
        ),
        Line(
            "Produce failed",
            "Its client gets UNKNOWN_SERVER_ERROR for one partition.",
            DEFECT,
        ),
        Line(
            "Fetch failed",
            "Its client gets UNKNOWN_SERVER_ERROR for one partition.",
            DEFECT,
        ),
        Line(
            "ListOffsets failed",
            "Its client gets UNKNOWN_SERVER_ERROR for one partition.",
            DEFECT,
        ),
        Line(
            "OffsetForLeaderEpoch failed",
            "Its client gets UNKNOWN_SERVER_ERROR for one partition.",
            DEFECT,
        ),
        Line(
            "a request was not counted for quotas",
            "The quota lets more pass than it says.",
            DEFECT,
        ),
        Line(
            "the quota callback has failed",
            "The class in `client.quota.callback.class` raised an error.",
            "Mend that class.",
        ),
    ),
)

_COORDINATORS: Final = Section(
    "Coordinators",
    (
        Line(
            "coordinator cannot read a partition: its clients wait until it can",
            "The disk, or a damaged partition of an internal topic; `error` says which. It is read again after "
            "growing pauses.",
            "Repair the disk, or heal the [damage](damage.md). With a traceback: please report it.",
        ),
        Line(
            "coordinator reloads a partition: its state may differ from the log",
            "A write failed; `error` says why. Clients get NOT_COORDINATOR and try again.",
            "Nothing, if it happens once: often too few replicas are in sync. Else look at the disk.",
        ),
        Line(
            "coordinator skipped records that it cannot decode",
            "A client wrote other records into an internal topic, or they are damaged; `first` names the first one.",
            "Forbid clients to write to internal topics. ([authorization](authorization.md))",
        ),
        Line(
            "a client wrote to a coordinator's partition: these records take effect at the next load",
            "A client with the client id `__admin_client` produced to an internal topic. As in Apache Kafka, the "
            "coordinator does not see the records before it reads the partition again.",
            "Nothing, if you meant it.",
        ),
        Line(
            "a coordinator's turn failed",
            "One group or transaction does not go on; its clients try again.",
            DEFECT,
        ),
        Line(
            "a coordinator's decision failed",
            "One request fails with UNKNOWN_SERVER_ERROR.",
            DEFECT,
        ),
        Line(
            "a coordinator could not apply its own record",
            "The coordinator reads its partition again.",
            DEFECT,
        ),
        Line(
            "a coordinator could not apply its own marker",
            "The coordinator reads its partition again.",
            DEFECT,
        ),
        Line(
            "a coordinator's effect failed",
            "What was to follow a decision did not happen.",
            DEFECT,
        ),
    ),
)

_GROUPS: Final = Section(
    "Groups",
    (
        Line(
            "a regular expression cannot be matched",
            "For the `error`, of the consumer group `group`: it is invalid under the limits of this version and "
            "matches nothing, or its topics do not fit in a record of `__consumer_offsets`, and it keeps those "
            "that it had.",
            "Use another expression, or raise `max.message.bytes` of that topic.",
        ),
        Line(
            "regular expressions could not be matched",
            "For the `error`, of the consumer group `group`: its members keep what they have. The group tries "
            "again when a member sends a heartbeat.",
            "Nothing, if it is rare.",
        ),
        Line(
            "a target assignment could not be decided",
            "For the `error`: the members of the group keep what they have. An assignor of another package may "
            "have failed.",
            "Mend the assignor. The group tries again when a member sends a heartbeat.",
        ),
        Line(
            "group is too large to become a classic group",
            "Its description does not fit in a record of `__consumer_offsets`; it stays a consumer group.",
            "Raise `max.message.bytes` of that topic, or let the members of the new protocol leave.",
        ),
        Line(
            "expired offsets could not be removed",
            "For the `error`, of the group `group`; it is tried again.",
            "Nothing, if it is rare: too few replicas of `__consumer_offsets` were in sync.",
        ),
        Line(
            "offsets of a deleted topic remain",
            "For the `error`, of the group `group`. They expire like others.",
            "Nothing, or `parley groups --delete-offsets`.",
        ),
        Line(
            "internal topics of a streams application cannot be created",
            "For the `error` in the line. The application waits.",
            "Allow its user to create topics, or create them by hand. More replicas than brokers: lower the factor.",
        ),
    ),
)

_SHARE: Final = Section(
    "Share groups",
    (
        Line(
            "share partitions could not be initialized",
            "For the `error`; the group tries again.",
            "Nothing, if it is rare: too few replicas of `__share_group_state` were in sync.",
        ),
        Line(
            "the initialization of share partitions could not be recorded",
            "Another coordinator of the group begins again.",
            NOTHING,
        ),
        Line(
            "share groups still contain a deleted topic",
            "For the `error`; the coordinator that loads the group next forgets it.",
            NOTHING,
        ),
        Line(
            "share partitions of a deleted topic remain",
            "For the `error`; they cost a little memory.",
            NOTHING,
        ),
        Line(
            "share state is ahead of the log",
            "The log has lost records that the share group had acknowledged, in an unclean election or a crash. "
            "The records in their place are delivered.",
            "See the line about the election.",
        ),
        Line(
            "share state could not be stored",
            "For the `error`; acknowledgements fail, and their records are delivered again.",
            "Nothing, if it is rare: the leader, or the coordinator, has changed.",
        ),
    ),
)

_TRANSACTIONS: Final = Section(
    "Transactions",
    (
        Line(
            "cannot abort timed-out transactions: raise max.message.bytes of __transaction_state",
            "The `transactional_id` and as many as `transactions` says do not fit in a record. They stay open, "
            "and block readers of committed records.",
            "Raise `max.message.bytes` of `__transaction_state`.",
        ),
        Line(
            "a partition rejects markers of this coordinator: a newer coordinator has written to it",
            "This broker is the coordinator of the `transactional_id` no more. The other one completes the "
            "transaction.",
            NOTHING,
        ),
        Line(
            "a transaction coordinator cannot be asked about partitions",
            "The leader of a partition cannot verify that a transaction has begun, for the `error`; the producer "
            "tries again.",
            "Look at the `broker`, if it lasts.",
        ),
        Line(
            "writing markers failed",
            "A transaction is completed later; it is tried again.",
            DEFECT,
        ),
        Line(
            "completing a transaction failed",
            "A transaction stays open; it is tried again.",
            DEFECT,
        ),
    ),
)

SECTIONS: Final = (_NETWORK, _SECURITY, _REQUESTS, _COORDINATORS, _GROUPS, _SHARE, _TRANSACTIONS)
