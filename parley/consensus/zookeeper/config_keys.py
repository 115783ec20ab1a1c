"""ZooKeeper's keys in a broker's configuration: those of Apache Kafka before version 4.

This module does not import the ZooKeeper client, so that a broker can check the keys without it.
"""

from __future__ import annotations

from types import MappingProxyType

from parley.consensus.store_config import ConfigKey, Importance, StoreConfig, ValueType
from parley.consensus.zookeeper.configured_address import address, secrets

_TLS_OF_THE_SYSTEM = "TLS with ZooKeeper uses the versions and ciphers that the system allows."

CONFIG = StoreConfig(
    title="ZooKeeper",
    doc="The keys that brokers of Apache Kafka had for ZooKeeper. They apply if coordination.url is empty and "
    "zookeeper.connect is set, or if coordination.url begins with zookeeper: (then only the passwords and "
    "zookeeper.session.timeout.ms).",
    address_key="zookeeper.connect",
    address=address,
    options=secrets,
    session_timeout_key="zookeeper.session.timeout.ms",
    unused=MappingProxyType({"zookeeper.metadata.migration.": "It moves a Kafka cluster to its own metadata quorum."}),
    keys=(
        ConfigKey(
            "zookeeper.connect",
            ValueType.STRING,
            None,
            "The ZooKeeper servers that coordinate the cluster: host:port,host:port, with an optional /path at the "
            "end. The same as coordination.url=zookeeper://..., which takes precedence if both are set.",
            Importance.HIGH,
            since="0.9 or before",
        ),
        ConfigKey(
            "zookeeper.session.timeout.ms",
            ValueType.INT,
            18_000,
            "With zookeeper.connect: how long ZooKeeper waits for a sign of life from this broker before it ends the "
            "broker's session. If this is not set, coordination.session.timeout.ms applies.",
            Importance.HIGH,
            at_least=1,
            unit="ms",
            since="0.9 or before",
        ),
        ConfigKey(
            "zookeeper.connection.timeout.ms",
            ValueType.INT,
            None,
            "With zookeeper.connect: how long a starting broker waits for its first connection to ZooKeeper. "
            "Defaults to zookeeper.session.timeout.ms.",
            Importance.HIGH,
            at_least=1,
            unit="ms",
            since="0.9 or before",
        ),
        ConfigKey(
            "zookeeper.set.acl",
            ValueType.BOOLEAN,
            False,
            "With zookeeper.connect: whether only the identity that this broker authenticated with may read and "
            "change the nodes that the broker creates in ZooKeeper.",
            Importance.HIGH,
            since="0.9 or before",
        ),
        ConfigKey(
            "zookeeper.sync.time.ms",
            ValueType.INT,
            2_000,
            "How far a ZooKeeper follower may lag.",
            Importance.LOW,
            unit="ms",
            ignored="The store itself ensures that reads are current where necessary.",
            since="0.9 or before",
        ),
        ConfigKey(
            "zookeeper.max.in.flight.requests",
            ValueType.INT,
            10,
            "The number of requests that Kafka sent to ZooKeeper at a time.",
            Importance.HIGH,
            at_least=1,
            ignored="The coordination backend limits its own requests.",
            since="1.1",
        ),
        ConfigKey(
            "zookeeper.clientCnxnSocket",
            ValueType.STRING,
            None,
            "The Java class of the ZooKeeper client's connection.",
            ignored="It names a part of the Java platform.",
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.client.enable",
            ValueType.BOOLEAN,
            False,
            "With zookeeper.connect: whether the broker connects to ZooKeeper over TLS.",
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.keystore.location",
            ValueType.STRING,
            None,
            "With zookeeper.connect: the file with this broker's key and certificate for ZooKeeper, in PEM or "
            "PKCS #12.",
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.keystore.password",
            ValueType.PASSWORD,
            None,
            "The password of zookeeper.ssl.keystore.location, or of the key in it.",
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.keystore.type",
            ValueType.STRING,
            None,
            "The format of zookeeper.ssl.keystore.location, PEM or PKCS12. The broker detects it from the content.",
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.truststore.location",
            ValueType.STRING,
            None,
            "With zookeeper.connect: the file with the certificates against which the broker verifies ZooKeeper's "
            "servers.",
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.truststore.password",
            ValueType.PASSWORD,
            None,
            "The password of zookeeper.ssl.truststore.location.",
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.truststore.type",
            ValueType.STRING,
            None,
            "The format of zookeeper.ssl.truststore.location, PEM or PKCS12. The broker detects it from the content.",
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.protocol",
            ValueType.STRING,
            "TLSv1.2",
            "The TLS version to prefer with ZooKeeper.",
            Importance.LOW,
            ignored=_TLS_OF_THE_SYSTEM,
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.enabled.protocols",
            ValueType.LIST,
            None,
            "The TLS versions allowed with ZooKeeper.",
            Importance.LOW,
            ignored=_TLS_OF_THE_SYSTEM,
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.cipher.suites",
            ValueType.LIST,
            None,
            "The cipher suites allowed with ZooKeeper.",
            Importance.LOW,
            ignored=_TLS_OF_THE_SYSTEM,
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.endpoint.identification.algorithm",
            ValueType.STRING,
            "HTTPS",
            "Whether the name in ZooKeeper's certificate must match its host name: HTTPS for yes, empty for no.",
            Importance.LOW,
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.crl.enable",
            ValueType.BOOLEAN,
            False,
            "Whether to check ZooKeeper's certificates against revocation lists.",
            Importance.LOW,
            ignored=_TLS_OF_THE_SYSTEM,
            since="2.5",
        ),
        ConfigKey(
            "zookeeper.ssl.ocsp.enable",
            ValueType.BOOLEAN,
            False,
            "Whether to check online if ZooKeeper's certificates have been revoked.",
            Importance.LOW,
            ignored=_TLS_OF_THE_SYSTEM,
            since="2.5",
        ),
    ),
)
