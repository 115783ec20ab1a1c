"""Log lines about clients: connections, logins, requests, groups, transactions and share groups."""

from __future__ import annotations

from typing import Final

from parley.broker.docs.log_lines.line import DEFECT, NOTHING, Line, Section

_NETWORK: Final = Section(
    "Connections",
    (
        Line(
            "connection closed",
            "A peer violated the protocol or a limit; the line contains its address and the `reason`.",
            "Fix that client. If the `reason` names TLS, the client and the listener do not agree on "
            "`security.protocol`.",
        ),
        Line(
            "more connections were closed",
            "This many more connections were closed within the same second.",
            "See the previous lines.",
        ),
        Line(
            "aborting connections at the end of the grace period",
            "Clients took too long to read their responses while the broker stopped. They connect to other brokers.",
            NOTHING,
        ),
        Line(
            "cannot accept connections: raise the limit of open files (ulimit -n, LimitNOFILE) or lower "
            "max.connections; closing the connections that have been idle longest",
            "No file descriptor is left for new connections.",
            "Raise the limit of open files.",
        ),
        Line(
            "cannot listen on the address of bootstrap.listeners again",
            "This broker had as many connections as it may, and left the shared address to the other brokers. Now it "
            "has a free place, but could not open the address. It tries again each second. Clients that know its own "
            "address are not affected.",
            "See the `reason`. If the address is in use, find the program that took it: `ss -ltnp`.",
        ),
        Line(
            "authentication between this broker and another broker failed",
            "The certificates or passwords of the inter-broker listener do not match; see the `reason`.",
            "Give both brokers certificates of the same authority, and the same users.",
        ),
        Line(
            "a request could not be decoded",
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
            "A login or a TLS handshake failed; the line contains the address, the mechanism, the claimed user and "
            "the `reason`.",
            "Give the client the right credentials, or, if it disconnects during the TLS handshake, the certificate of "
            "the authority that has signed this broker's. Many lines from one address mean an old password, or an "
            "attacker who guesses passwords.",
        ),
        Line(
            "a login failed with an unexpected error",
            "The login fails.",
            DEFECT,
        ),
        Line(
            "could not change the security of inter-broker connections: the previous settings stay in use",
            "A certificate or a setting cannot be used; see the `reason`.",
            "Correct it. The broker reads it again without a restart.",
        ),
        Line(
            "could not change the security settings of a listener: the previous settings stay in use",
            "A certificate or a setting cannot be used; see the `reason`. On the inter-broker listener this is also a "
            "certificate that has expired, or that the listener's trust store does not trust.",
            "Correct it. The broker reads it again without a restart.",
        ),
        Line(
            "the new certificates cannot be used; the old ones stay in use: ...",
            "Files of certificates have changed and cannot be read.",
            "Correct the files. The broker reads them again without a restart.",
        ),
        Line(
            "the certificate of a listener has expired: clients refuse it",
            "The line contains the `listener`, its `files`, and the time at which the certificate expired.",
            "Put a new certificate into the file. The broker reads it without a restart.",
        ),
        Line(
            "a revocation list has expired: clients with certificates of its issuer are refused",
            "The line contains the `listener`, the `issuer` and the time at which the list expired.",
            "Put a new list into the file. The broker reads it without a restart.",
        ),
        Line(
            "the kernel cannot encrypt, so OpenSSL does: load the kernel's module with `modprobe tls`",
            "`ssl.ktls.enable` has no effect on this `listener`. Clients see no difference.",
            "Load the module, and those of its ciphers (`gcm`, `chacha20poly1305`); then restart the broker.",
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
            "the keys that verify tokens are fetched without TLS: use https, otherwise attackers can forge tokens",
            "`sasl.oauthbearer.jwks.endpoint.url` begins with `http:`.",
            "Use an address that begins with `https:`.",
        ),
        Line(
            "the secret of a client is sent to its token endpoint without TLS",
            "`sasl.oauthbearer.token.endpoint.url` begins with `http:`; the line contains the `host`.",
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
            "the controller rejected a forwarded request",
            "Clients get UNKNOWN_SERVER_ERROR; see the `reason`.",
            "With CLUSTER_AUTHORIZATION_FAILED, add the principal of the brokers to `super.users`, or allow it "
            "ClusterAction on the cluster.",
        ),
        Line(
            "... failed",
            "A request of this API failed unexpectedly. Its client gets UNKNOWN_SERVER_ERROR.",
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
            "This request does not count toward its client's quota, so the client may use more than that.",
            DEFECT,
        ),
        Line(
            "the quota callback failed",
            "The class in `client.quota.callback.class` raised an error.",
            "Fix that class.",
        ),
    ),
)

_COORDINATORS: Final = Section(
    "Coordinators",
    (
        Line(
            "coordinator cannot read a partition and keeps retrying: the partition's clients wait",
            "A disk failed, or a partition of an internal topic is damaged; see `error`. The coordinator retries after "
            "growing pauses.",
            "Repair the disk, or start the brokers of the other replicas, which may have intact copies of the "
            "[damaged records](damage.md#what-the-broker-does-about-damage). With a traceback: please report it.",
        ),
        Line(
            "coordinator reloads a partition: its state may differ from the log",
            "A write failed; see `error`. Clients get NOT_COORDINATOR and retry.",
            "Nothing, if it happens once: often too few replicas are in sync. Otherwise check the disk.",
        ),
        Line(
            "coordinator skipped records that it cannot decode",
            "A client wrote other records into an internal topic, or records are damaged and no replica has them; see "
            "`first` for the first one.",
            "Do not allow clients to write to internal topics ([authorization](authorization.md)). Check the disk "
            "([damage](damage.md#what-the-broker-does-about-damage)).",
        ),
        Line(
            "a client wrote to a coordinator's partition: these records take effect at the next load",
            "A client with the client id `__admin_client` produced to an internal topic. As in Apache Kafka, the "
            "coordinator does not see the records until it loads the partition again.",
            "Nothing, if it was intended.",
        ),
        Line(
            "a coordinator's turn failed",
            "The coordinator loads its partition again. Clients get NOT_COORDINATOR and retry.",
            DEFECT,
        ),
        Line(
            "a coordinator's decision failed",
            "One request fails with UNKNOWN_SERVER_ERROR.",
            DEFECT,
        ),
        Line(
            "a coordinator could not apply its own record",
            "The coordinator loads its partition again.",
            DEFECT,
        ),
        Line(
            "a coordinator could not apply its own marker",
            "The coordinator loads its partition again.",
            DEFECT,
        ),
        Line(
            "a coordinator's effect failed",
            "A decision was stored, but work that follows it, such as writing markers, was not started.",
            DEFECT,
        ),
    ),
)

_GROUPS: Final = Section(
    "Groups",
    (
        Line(
            "a regular expression cannot be matched",
            "An expression of the consumer group `group` is invalid under the limits of this version and matches "
            "nothing, or its topics do not fit in a record of `__consumer_offsets` and it keeps its previous topics; "
            "see `error`.",
            "Use another expression, or raise `max.message.bytes` of that topic.",
        ),
        Line(
            "regular expressions could not be matched",
            "The members of the consumer group `group` keep their partitions; see `error`. The group retries when a "
            "member sends a heartbeat.",
            "Nothing, if it is rare.",
        ),
        Line(
            "a target assignment could not be computed",
            "The members of the group keep their partitions; see `error`. An assignor from another package may have "
            "failed.",
            "Fix the assignor. The group retries when a member sends a heartbeat.",
        ),
        Line(
            "group is too large to become a classic group",
            "The members of the group do not fit in one record of `__consumer_offsets`. It stays a consumer group.",
            "Raise `max.message.bytes` of that topic, or run fewer members.",
        ),
        Line(
            "expired offsets could not be removed",
            "The offsets of the group `group` stay; see `error`. The coordinator retries later.",
            "Nothing, if it is rare: too few replicas of `__consumer_offsets` were in sync.",
        ),
        Line(
            "offsets of a deleted topic remain",
            "The offsets of the group `group` could not be removed; see `error`. They expire like other offsets.",
            "Nothing, or `parley groups --delete-offsets`.",
        ),
        Line(
            "internal topics of a streams application cannot be created",
            "The application waits; see `reason`.",
            "Allow its user to create topics, or create them manually. If there are fewer brokers than replicas, lower "
            "the replication factor.",
        ),
    ),
)

_SHARE: Final = Section(
    "Share groups",
    (
        Line(
            "share partitions could not be initialized",
            "See `error`. The group retries.",
            "Nothing, if it is rare: too few replicas of `__share_group_state` were in sync.",
        ),
        Line(
            "the initialization of share partitions could not be recorded",
            "The next coordinator of the group starts again.",
            NOTHING,
        ),
        Line(
            "share groups still contain a deleted topic",
            "See `error`. The next coordinator that loads the group removes the topic.",
            NOTHING,
        ),
        Line(
            "share partitions of a deleted topic remain",
            "See `error`. They take a little memory.",
            NOTHING,
        ),
        Line(
            "share state is ahead of the log",
            "In an unclean election or a crash, the log has lost records that the share group had acknowledged. "
            "New records that reuse the lost offsets will be delivered.",
            "See the line about the election.",
        ),
        Line(
            "share state could not be stored",
            "See `error`. Acknowledgements fail, and their records are delivered again.",
            "Nothing, if it is rare: the leader or the coordinator has changed.",
        ),
    ),
)

_TRANSACTIONS: Final = Section(
    "Transactions",
    (
        Line(
            "cannot abort timed-out transactions: raise max.message.bytes of __transaction_state",
            "The aborts of `transactions` transactions, the first one of `transactional_id`, do not fit in a record. "
            "The transactions stay open, and block readers of committed records.",
            "Raise `max.message.bytes` of `__transaction_state`.",
        ),
        Line(
            "a partition rejects markers of this coordinator: a newer coordinator has written to it",
            "This broker no longer coordinates the `transactional_id`. The new coordinator completes the transaction.",
            NOTHING,
        ),
        Line(
            "a transaction coordinator is unreachable",
            "The leader of a partition cannot verify that a transaction has begun; see `error`. The producer retries.",
            "If it continues, check the `broker`.",
        ),
        Line(
            "writing markers failed",
            "The markers are sent again, so transactions complete later.",
            DEFECT,
        ),
        Line(
            "completing a transaction failed",
            "The coordinator retries, so the transaction completes later.",
            DEFECT,
        ),
    ),
)

SECTIONS: Final = (_NETWORK, _SECURITY, _REQUESTS, _COORDINATORS, _GROUPS, _SHARE, _TRANSACTIONS)
