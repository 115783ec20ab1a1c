"""Listeners, connections, and the limits of a broker's memory."""

from __future__ import annotations

from parley.broker.config.key_definition import (
    CLUSTER_WIDE,
    HIGH,
    LOW,
    MAX_INT,
    PER_BROKER,
    Keys,
    integer,
    long,
    string,
    strings,
)
from parley.broker.config.keys.reasons import LOOP, PURGATORY


def _connection_overrides(text: str) -> bool:
    pairs = [pair.rpartition(":") for pair in text.split(",")] if text else []
    return all(host.strip() and count.strip().isdecimal() for host, _, count in pairs)


class NetworkKeys(Keys, title="Network"):
    """Listeners, connections, and the limits of a broker's memory."""

    listeners = strings(
        "listeners",
        ("PLAINTEXT://:9092",),
        "The addresses to listen on, as name://host:port separated by commas. The name is a security protocol or "
        "an entry of listener.security.protocol.map. An empty host means every network interface, port 0 any free "
        "port. Names must be unique.",
        dynamic=PER_BROKER,
        importance=HIGH,
    )
    advertised_listeners = strings(
        "advertised.listeners",
        None,
        "The addresses that clients and other brokers connect to, if they cannot reach those in listeners: behind a "
        "proxy, in a container, in a cloud. Defaults to the addresses in listeners. 0.0.0.0 cannot be advertised.",
        importance=HIGH,
    )
    bootstrap_listeners = strings(
        "bootstrap.listeners",
        (),
        "Additional addresses of listeners, in the same format, which all brokers of a machine share: the kernel gives "
        "each connection to one of them (SO_REUSEPORT). Clients need only this address in bootstrap.servers. From any "
        "broker they learn the brokers' own addresses, which advertised.listeners contains. Each name must be one in "
        "listeners, whose security applies. A broker that has reached max.connections leaves the address to the other "
        "brokers; if all have reached it, connections are refused. parley start --brokers N --bootstrap-port PORT sets "
        "it. The brokers must run as the same user, and belong to one cluster, which they do not check.",
        since="",
    )
    listener_security_protocol_map = string(
        "listener.security.protocol.map",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "The security protocol of each named listener, as name:protocol separated by commas. Protocols are "
        "PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL; several listeners can use the same one.",
        dynamic=PER_BROKER,
        importance=LOW,
        since="0.10.2 (KIP-103)",
    )
    inter_broker_listener_name = string(
        "inter.broker.listener.name",
        None,
        "The listener that brokers use to connect to each other. Defaults to the listener whose protocol is "
        "security.inter.broker.protocol. Set only one of the two keys.",
        since="0.10.2 (KIP-103)",
    )
    security_inter_broker_protocol = string(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        "The security protocol that brokers use to communicate with each other.",
        allowed=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    control_plane_listener_name = string(
        "control.plane.listener.name",
        None,
        "A separate listener for the controller's requests to brokers.",
        importance=HIGH,
        since="2.2 (KIP-291)",
        ignored="Brokers fetch the controller's decisions; it does not send them requests.",
    )
    early_start_listeners = strings(
        "early.start.listeners",
        None,
        "Listeners that open before the authorizer is ready.",
        importance=HIGH,
        since="3.3 (KIP-801)",
        ignored="All listeners open when the broker has loaded the cluster's metadata.",
    )
    host_name = string(
        "host.name",
        "",
        "The address to listen on; a key from before Kafka had listeners. Used only if listeners is not set.",
        importance=HIGH,
        deprecated="listeners",
    )
    port = integer(
        "port",
        9_092,
        "The port to listen on; a key from before Kafka had listeners. Used only if listeners is not set.",
        at_least=0,
        at_most=65_535,
        importance=HIGH,
        deprecated="listeners",
    )
    advertised_host_name = string(
        "advertised.host.name",
        None,
        "The host that clients connect to; a key from before Kafka had listeners. Used only if neither "
        "advertised.listeners nor listeners is set.",
        importance=HIGH,
        deprecated="advertised.listeners",
    )
    advertised_port = integer(
        "advertised.port",
        None,
        "The port that clients connect to; a key from before Kafka had listeners. Used only if neither "
        "advertised.listeners nor listeners is set.",
        at_least=1,
        at_most=65_535,
        importance=HIGH,
        deprecated="advertised.listeners",
    )
    socket_send_buffer_bytes = integer(
        "socket.send.buffer.bytes",
        -1,
        "The size of the send buffer of every accepted connection. With -1 the operating system chooses and adapts "
        "it. Kafka's default of 102400 costs a broker up to 50% more CPU time per byte consumed.",
        at_least=-1,
        unit="bytes",
        importance=HIGH,
    )
    socket_receive_buffer_bytes = integer(
        "socket.receive.buffer.bytes",
        -1,
        "The size of the receive buffer of every accepted connection. With -1 the operating system chooses and "
        "adapts it. Kafka's default of 102400 costs a broker up to 33% more CPU time per byte produced.",
        at_least=-1,
        unit="bytes",
        importance=HIGH,
    )
    socket_request_max_bytes = integer(
        "socket.request.max.bytes",
        104_857_600,
        "The maximum size of a request. A longer request closes its connection. It must be at least as large as the "
        "largest produce request of any client. The broker allocates memory for a request only as it arrives.",
        at_least=1,
        unit="bytes",
        importance=HIGH,
    )
    socket_listen_backlog_size = integer(
        "socket.listen.backlog.size",
        4096,
        "The maximum number of connections that wait to be accepted. The kernel's somaxconn limits it. A connection "
        "beyond it takes a second or longer, because the client's kernel must repeat its first packet: with Kafka's "
        "default of 50, this happens whenever many clients connect at the same time.",
        at_least=1,
        since="3.2 (KIP-764)",
    )
    socket_connection_setup_timeout_ms = long(
        "socket.connection.setup.timeout.ms",
        10_000,
        "How long this broker waits for a connection to another broker to be established.",
        at_least=1,
        unit="ms",
        since="2.7 (KIP-601)",
    )
    socket_connection_setup_timeout_max_ms = long(
        "socket.connection.setup.timeout.max.ms",
        30_000,
        "The maximum to which socket.connection.setup.timeout.ms grows.",
        at_least=1,
        unit="ms",
        since="2.7 (KIP-601)",
        ignored="The time limit for a connection does not grow.",
    )
    connections_max_idle_ms = long(
        "connections.max.idle.ms",
        600_000,
        "Connections without a request for this long are closed. -1 means never.",
        at_least=-1,
        unit="ms",
    )
    connections_max_reauth_ms = long(
        "connections.max.reauth.ms",
        0,
        "How long a SASL login lasts before the client must log in again; 0 means forever.",
        at_least=0,
        unit="ms",
        since="2.2 (KIP-368)",
    )
    connections_max_unauthenticated_ms = integer(
        "connections.max.unauthenticated.ms",
        30_000,
        "How long a client may take for the TLS handshake, and then for its SASL login. The broker closes slower "
        "connections.",
        at_least=1,
        unit="ms",
        since="",
    )
    connection_failed_authentication_delay_ms = integer(
        "connection.failed.authentication.delay.ms",
        100,
        "How long the broker delays the response to a failed login, to slow down guessing. Must be less than "
        "connections.max.idle.ms.",
        at_least=0,
        unit="ms",
        importance=LOW,
        since="2.1 (KIP-306)",
    )
    max_connections = integer(
        "max.connections",
        MAX_INT,
        "The maximum number of open connections of this broker. When it is reached, a new connection on the "
        "inter-broker listener closes the connection that has been idle longest, and other new connections wait. Can "
        "be set per listener as listener.name.<name>.max.connections. At least 1.",
        at_least=0,
        dynamic=CLUSTER_WIDE,
        since="2.3 (KIP-402)",
    )
    max_connections_per_ip = integer(
        "max.connections.per.ip",
        MAX_INT,
        "The maximum number of connections from one address. Further connections are closed immediately. 0 admits "
        "only the addresses in max.connections.per.ip.overrides.",
        at_least=0,
        dynamic=CLUSTER_WIDE,
    )
    max_connections_per_ip_overrides = string(
        "max.connections.per.ip.overrides",
        "",
        "Limits for individual addresses or host names that override max.connections.per.ip, as host:count separated "
        "by commas.",
        check=_connection_overrides,
        form="host:count pairs, separated by commas",
        dynamic=CLUSTER_WIDE,
    )
    max_connection_creation_rate = integer(
        "max.connection.creation.rate",
        MAX_INT,
        "The maximum number of connections accepted per second; further ones wait. Connections on the inter-broker "
        "listener do not count if there are other listeners. Can be set per listener as "
        "listener.name.<name>.max.connection.creation.rate. At least 1.",
        at_least=0,
        unit="connections/s",
        dynamic=CLUSTER_WIDE,
        since="2.7 (KIP-612)",
    )
    queued_max_requests = integer(
        "queued.max.requests",
        500,
        "The maximum number of requests in progress in this broker, including those that wait. When it is reached, "
        "the broker stops reading from all connections. Lower it to limit memory use; raise it for a very large "
        "number of clients.",
        at_least=1,
        importance=HIGH,
    )
    queued_max_request_bytes = long(
        "queued.max.request.bytes",
        -1,
        "The maximum number of bytes of requests that the broker holds. When it is reached, the broker stops "
        "reading from all connections. With -1 only queued.max.requests limits them.",
        at_least=-1,
        unit="bytes",
        since="1.0 (KIP-72)",
    )
    max_request_partition_size_limit = integer(
        "max.request.partition.size.limit",
        2_000,
        "The maximum number of partitions in a response to DescribeTopicPartitions. The client continues from a "
        "cursor.",
        at_least=1,
        unit="partitions",
        since="3.8 (KIP-966)",
        ignored="A response describes at most 2000 partitions.",
    )
    num_network_threads = integer(
        "num.network.threads",
        3,
        "The number of Kafka's threads that read from and write to sockets.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        ignored=LOOP,
    )
    num_io_threads = integer(
        "num.io.threads",
        8,
        "The number of Kafka's threads that handle requests.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        ignored=LOOP,
    )
    background_threads = integer(
        "background.threads",
        10,
        "The number of Kafka's threads for deletion, flushing and checkpoints.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        ignored=LOOP,
    )
    request_timeout_ms = integer(
        "request.timeout.ms",
        30_000,
        "How long this broker waits for the response to a request that it sends to another broker or to the "
        "controller. Fetches of followers use replica.socket.timeout.ms.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    fetch_max_bytes = integer(
        "fetch.max.bytes",
        57_671_680,
        "The maximum number of bytes of records in a fetch response, regardless of the client's request. A single "
        "larger batch is still returned, so that the consumer can make progress.",
        at_least=1_024,
        unit="bytes",
        since="2.5 (KIP-541)",
    )
    max_incremental_fetch_session_cache_slots = integer(
        "max.incremental.fetch.session.cache.slots",
        1_000,
        "The number of fetch sessions that the broker keeps. With a session, a consumer or follower need not list "
        "all its partitions in every fetch. Raise it if more clients than this fetch from a broker. 0 disables "
        "sessions.",
        at_least=0,
        unit="sessions",
        since="1.1 (KIP-227)",
    )
    fetch_purgatory_purge_interval_requests = integer(
        "fetch.purgatory.purge.interval.requests",
        1_000,
        "The number of completed fetches that Kafka keeps in the purgatory before it removes them.",
        unit="requests",
        ignored=PURGATORY,
    )
    producer_purgatory_purge_interval_requests = integer(
        "producer.purgatory.purge.interval.requests",
        1_000,
        "The number of completed produce requests that Kafka keeps in the purgatory before it removes them.",
        unit="requests",
        ignored=PURGATORY,
    )
    delete_records_purgatory_purge_interval_requests = integer(
        "delete.records.purgatory.purge.interval.requests",
        1,
        "The number of completed DeleteRecords requests that Kafka keeps in the purgatory before it removes them.",
        unit="requests",
        since="0.11.0 (KIP-107)",
        ignored=PURGATORY,
    )
