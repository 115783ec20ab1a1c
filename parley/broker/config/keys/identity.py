"""Who a broker is, and where the cluster's brokers meet."""

from __future__ import annotations

from parley.broker.config.definition import HIGH, LOW, Keys, boolean, integer, password, string, strings
from parley.broker.config.keys.reasons import JAVA, ZOOKEEPER


class IdentityKeys(Keys, title="Identity and coordination"):
    """Who a broker is, and where the cluster's brokers meet."""

    broker_id = integer(
        "broker.id",
        -1,
        "The number of this broker in its cluster. -1 lets the cluster give one out, above "
        "reserved.broker.max.id, which is then kept in meta.properties of every log directory. node.id is the "
        "same thing; give either, or both with one value.",
        at_least=-1,
        importance=HIGH,
    )
    node_id = integer(
        "node.id",
        -1,
        "The number of this broker in its cluster, by the name Kafka has used since it left ZooKeeper. The "
        "same thing as broker.id.",
        at_least=-1,
        importance=HIGH,
        since="2.8",
    )
    broker_id_generation_enable = boolean(
        "broker.id.generation.enable",
        True,
        "Whether a broker without an id may be given one by the cluster. Turn it off where every broker has "
        "to be numbered by hand.",
    )
    reserved_broker_max_id = integer(
        "reserved.broker.max.id",
        1_000,
        "The highest id that may be written into a configuration; ids given out by the cluster begin above "
        "it. Raise it before numbering brokers by hand beyond it.",
        at_least=0,
    )
    broker_rack = string(
        "broker.rack",
        None,
        "The rack, zone or data centre this broker is in. Replicas of a partition are spread over racks, and "
        "a consumer that names its rack may read from a replica in it. Any text; equal texts are one rack.",
        since="0.10.0 (KIP-36)",
    )
    coordination_url = string(
        "coordination.url",
        "",
        "The address of the store that coordinates the brokers of one cluster; what it begins with says which one. "
        "docs/stores.md has those there are, and packages may bring others, each with the scheme it registers. An "
        "address that nothing here understands stops the start. Empty: the store that "
        "zookeeper.connect names, else the embedded one in the folder coordination of the first log directory.",
        importance=HIGH,
        since="",
    )
    coordination_session_timeout_ms = integer(
        "coordination.session.timeout.ms",
        9_000,
        "How long the coordination store may hear nothing from this broker before it counts as gone. Shorter "
        "notices a silent machine sooner; longer rides out pauses of a store or a network. A killed process "
        "is noticed at once in any case. Raised to what the store can hold to.",
        at_least=500,
        unit="ms",
        since="",
    )
    zookeeper_connect = string(
        "zookeeper.connect",
        None,
        "The ZooKeeper servers that coordinate the cluster, as host:port,host:port, with an optional /path of "
        "its own at the end: the same as coordination.url=zookeeper://..., which counts more where both are given.",
        importance=HIGH,
    )
    zookeeper_session_timeout_ms = integer(
        "zookeeper.session.timeout.ms",
        18_000,
        "With zookeeper.connect: how long ZooKeeper may hear nothing from this broker before it counts as "
        "gone. coordination.session.timeout.ms is used where this is not given.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    zookeeper_connection_timeout_ms = integer(
        "zookeeper.connection.timeout.ms",
        None,
        "With zookeeper.connect: how long the start waits for the first connection to ZooKeeper. By default "
        "as long as zookeeper.session.timeout.ms.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    zookeeper_set_acl = boolean(
        "zookeeper.set.acl",
        False,
        "With zookeeper.connect: whether the nodes made in ZooKeeper are readable and writable only by the "
        "identity this broker authenticated with.",
        importance=HIGH,
    )
    zookeeper_sync_time_ms = integer(
        "zookeeper.sync.time.ms",
        2_000,
        "How far a ZooKeeper follower was allowed to lag.",
        unit="ms",
        importance=LOW,
        ignored="Reads that have to be current are made current by the store itself.",
    )
    zookeeper_max_in_flight_requests = integer(
        "zookeeper.max.in.flight.requests",
        10,
        "How many requests Kafka had under way to ZooKeeper at a time.",
        at_least=1,
        importance=HIGH,
        since="1.1",
        ignored="The coordination backend bounds its own requests.",
    )
    zookeeper_clientCnxnSocket = string(  # noqa: N815 (the name is ZooKeeper's)
        "zookeeper.clientCnxnSocket",
        None,
        "The Java class of the ZooKeeper client's connection.",
        since="2.5",
        ignored=JAVA,
    )
    zookeeper_ssl_client_enable = boolean(
        "zookeeper.ssl.client.enable",
        False,
        "With zookeeper.connect: whether ZooKeeper is spoken to over TLS.",
        since="2.5",
    )
    zookeeper_ssl_keystore_location = string(
        "zookeeper.ssl.keystore.location",
        None,
        "With zookeeper.connect: the file that holds this broker's key and certificate for ZooKeeper, in PEM or "
        "PKCS #12.",
        since="2.5",
    )
    zookeeper_ssl_keystore_password = password(
        "zookeeper.ssl.keystore.password",
        "The secret of zookeeper.ssl.keystore.location, or of the key in it.",
        since="2.5",
    )
    zookeeper_ssl_keystore_type = string(
        "zookeeper.ssl.keystore.type",
        None,
        "The format of zookeeper.ssl.keystore.location, PEM or PKCS12; told from its content.",
        since="2.5",
    )
    zookeeper_ssl_truststore_location = string(
        "zookeeper.ssl.truststore.location",
        None,
        "With zookeeper.connect: the file that holds the certificates ZooKeeper's servers are verified by.",
        since="2.5",
    )
    zookeeper_ssl_truststore_password = password(
        "zookeeper.ssl.truststore.password",
        "The secret of zookeeper.ssl.truststore.location.",
        since="2.5",
    )
    zookeeper_ssl_truststore_type = string(
        "zookeeper.ssl.truststore.type",
        None,
        "The format of zookeeper.ssl.truststore.location, PEM or PKCS12; told from its content.",
        since="2.5",
    )
    zookeeper_ssl_protocol = string(
        "zookeeper.ssl.protocol",
        "TLSv1.2",
        "The TLS version spoken with ZooKeeper where both sides could speak several.",
        importance=LOW,
        since="2.5",
        ignored=ZOOKEEPER,
    )
    zookeeper_ssl_enabled_protocols = strings(
        "zookeeper.ssl.enabled.protocols",
        None,
        "The TLS versions allowed with ZooKeeper.",
        importance=LOW,
        since="2.5",
        ignored=ZOOKEEPER,
    )
    zookeeper_ssl_cipher_suites = strings(
        "zookeeper.ssl.cipher.suites",
        None,
        "The cipher suites allowed with ZooKeeper.",
        importance=LOW,
        since="2.5",
        ignored=ZOOKEEPER,
    )
    zookeeper_ssl_endpoint_identification_algorithm = string(
        "zookeeper.ssl.endpoint.identification.algorithm",
        "HTTPS",
        "Whether the name in ZooKeeper's certificate has to be its host name: HTTPS, or empty for no.",
        importance=LOW,
        since="2.5",
    )
    zookeeper_ssl_crl_enable = boolean(
        "zookeeper.ssl.crl.enable",
        False,
        "Whether revocation lists are looked at for ZooKeeper's certificates.",
        importance=LOW,
        since="2.5",
        ignored=ZOOKEEPER,
    )
    zookeeper_ssl_ocsp_enable = boolean(
        "zookeeper.ssl.ocsp.enable",
        False,
        "Whether the revocation of ZooKeeper's certificates is asked for online.",
        importance=LOW,
        since="2.5",
        ignored=ZOOKEEPER,
    )
    process_roles = strings(
        "process.roles",
        (),
        "Whether a Kafka process is a broker, a controller, or both.",
        allowed=("broker", "controller"),
        importance=HIGH,
        since="2.8",
        ignored="Every broker can become the controller; see coordination.url.",
    )
    controller_listener_names = strings(
        "controller.listener.names",
        (),
        "The listeners that belong to Kafka's controller. Listeners named here are not opened, so that a "
        "configuration written for Kafka's own quorum starts a Parley broker.",
        importance=HIGH,
        since="2.8",
    )
