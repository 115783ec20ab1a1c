"""Listeners, connections and the limits that keep a broker's memory bounded."""

from __future__ import annotations

from parley.broker.config.definition import (
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
from parley.broker.config.keys.reasons import LOOP, PURGATORY, SASL


def _connection_overrides(text: str) -> bool:
    pairs = [pair.rpartition(":") for pair in text.split(",")] if text else []
    return all(host.strip() and count.strip().isdecimal() for host, _, count in pairs)


class NetworkKeys(Keys, title="Network"):
    """Listeners, connections and the limits that keep a broker's memory bounded."""

    listeners = strings(
        "listeners",
        ("PLAINTEXT://:9092",),
        "The addresses to listen on, as name://host:port separated by commas. The name is that of a security "
        "protocol or of an entry of listener.security.protocol.map; an empty host means every interface, port "
        "0 any free port. Names are unique.",
        dynamic=PER_BROKER,
        importance=HIGH,
    )
    advertised_listeners = strings(
        "advertised.listeners",
        None,
        "The addresses clients and other brokers are told to connect to, where those of listeners are not "
        "reachable for them: behind a proxy, in a container, in a cloud. By default those of listeners. "
        "0.0.0.0 cannot be advertised.",
        importance=HIGH,
    )
    listener_security_protocol_map = string(
        "listener.security.protocol.map",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Which security protocol each named listener speaks, as name:protocol separated by commas. Protocols "
        "are PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL; several listeners may share one.",
        dynamic=PER_BROKER,
        importance=LOW,
        since="0.10.2 (KIP-103)",
    )
    inter_broker_listener_name = string(
        "inter.broker.listener.name",
        None,
        "The listener brokers talk to each other through. By default the one whose protocol is "
        "security.inter.broker.protocol; only one of the two keys may be given.",
        since="0.10.2 (KIP-103)",
    )
    security_inter_broker_protocol = string(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        "The security protocol brokers talk to each other with.",
        allowed=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    control_plane_listener_name = string(
        "control.plane.listener.name",
        None,
        "A listener of its own for the controller's requests to brokers.",
        importance=HIGH,
        since="2.2 (KIP-291)",
        ignored="Brokers pull the controller's decisions; nothing is sent to them.",
    )
    early_start_listeners = strings(
        "early.start.listeners",
        None,
        "Listeners that open before the authorizer is ready.",
        importance=HIGH,
        since="3.3 (KIP-801)",
        ignored="All listeners open once the broker has read the cluster's state.",
    )
    host_name = string(
        "host.name",
        "",
        "The address to listen on, from before there were listeners. Used where listeners is not given.",
        importance=HIGH,
        deprecated="listeners",
    )
    port = integer(
        "port",
        9_092,
        "The port to listen on, from before there were listeners. Used where listeners is not given.",
        at_least=0,
        at_most=65_535,
        importance=HIGH,
        deprecated="listeners",
    )
    advertised_host_name = string(
        "advertised.host.name",
        None,
        "The host clients are told to connect to, from before there were listeners. Used where neither "
        "advertised.listeners nor listeners is given.",
        importance=HIGH,
        deprecated="advertised.listeners",
    )
    advertised_port = integer(
        "advertised.port",
        None,
        "The port clients are told to connect to, from before there were listeners. Used where neither "
        "advertised.listeners nor listeners is given.",
        at_least=1,
        at_most=65_535,
        importance=HIGH,
        deprecated="advertised.listeners",
    )
    socket_send_buffer_bytes = integer(
        "socket.send.buffer.bytes",
        -1,
        "The send buffer asked for on every accepted connection; -1 leaves it to the operating system, which "
        "then adapts it. Kafka's default of 102400 costs a broker up to half again as much CPU time per byte consumed.",
        at_least=-1,
        unit="bytes",
        importance=HIGH,
    )
    socket_receive_buffer_bytes = integer(
        "socket.receive.buffer.bytes",
        -1,
        "The receive buffer asked for on every accepted connection; -1 leaves it to the operating system, "
        "which then adapts it. Kafka's default of 102400 costs a broker up to a third more CPU time per byte produced.",
        at_least=-1,
        unit="bytes",
        importance=HIGH,
    )
    socket_request_max_bytes = integer(
        "socket.request.max.bytes",
        104_857_600,
        "The longest request that is read. A longer one closes its connection. Has to hold the largest "
        "produce request of any client; memory for a request is only taken while it arrives.",
        at_least=1,
        unit="bytes",
        importance=HIGH,
    )
    socket_listen_backlog_size = integer(
        "socket.listen.backlog.size",
        50,
        "How many connections may wait to be accepted. Raise it, and the kernel's somaxconn with it, when "
        "many clients connect at one moment.",
        at_least=1,
        since="3.2 (KIP-764)",
    )
    socket_connection_setup_timeout_ms = long(
        "socket.connection.setup.timeout.ms",
        10_000,
        "How long an attempt to connect to another broker may take.",
        at_least=1,
        unit="ms",
        since="2.7 (KIP-601)",
    )
    socket_connection_setup_timeout_max_ms = long(
        "socket.connection.setup.timeout.max.ms",
        30_000,
        "What socket.connection.setup.timeout.ms grows to at most.",
        at_least=1,
        unit="ms",
        since="2.7 (KIP-601)",
        ignored="The time that a connection may take does not grow.",
    )
    connections_max_idle_ms = long(
        "connections.max.idle.ms",
        600_000,
        "Connections without a request for this long are closed. -1: never.",
        at_least=-1,
        unit="ms",
    )
    connections_max_reauth_ms = long(
        "connections.max.reauth.ms",
        0,
        "How long a SASL login lasts before the client has to repeat it; 0: for ever.",
        at_least=0,
        unit="ms",
        since="2.2 (KIP-368)",
        ignored=SASL,
    )
    connection_failed_authentication_delay_ms = integer(
        "connection.failed.authentication.delay.ms",
        100,
        "How long the refusal of a failed login is held back, so that guessing is slow. Less than "
        "connections.max.idle.ms.",
        at_least=0,
        unit="ms",
        importance=LOW,
        since="2.1 (KIP-306)",
        ignored=SASL,
    )
    max_connections = integer(
        "max.connections",
        MAX_INT,
        "How many connections this broker has open at most. When they are used up, the one idle longest is "
        "closed for a new one on the listener between brokers, and others wait. May be given per listener as "
        "listener.name.<name>.max.connections. At least 1.",
        at_least=0,
        dynamic=CLUSTER_WIDE,
        since="2.3 (KIP-402)",
    )
    max_connections_per_ip = integer(
        "max.connections.per.ip",
        MAX_INT,
        "How many connections one address may have open; more are closed at once. 0 admits only addresses "
        "named in max.connections.per.ip.overrides.",
        at_least=0,
        dynamic=CLUSTER_WIDE,
    )
    max_connections_per_ip_overrides = string(
        "max.connections.per.ip.overrides",
        "",
        "Other limits than max.connections.per.ip for single addresses or host names, as host:count separated "
        "by commas.",
        check=_connection_overrides,
        form="host:count pairs, separated by commas",
        dynamic=CLUSTER_WIDE,
    )
    max_connection_creation_rate = integer(
        "max.connection.creation.rate",
        MAX_INT,
        "How many connections are accepted in a second at most; others wait. Those on the listener between brokers "
        "do not count where there are others. May be given per listener, as "
        "listener.name.<name>.max.connection.creation.rate. At least 1.",
        at_least=0,
        unit="connections/s",
        dynamic=CLUSTER_WIDE,
        since="2.7 (KIP-612)",
    )
    queued_max_requests = integer(
        "queued.max.requests",
        500,
        "How many requests may be under way in this broker, waiting ones included, before no more is read "
        "from any connection. Lower it to bound memory, raise it for very many clients.",
        at_least=1,
        importance=HIGH,
    )
    queued_max_request_bytes = long(
        "queued.max.request.bytes",
        -1,
        "How many bytes of requests may be held before no more is read from any connection; -1: no bound but "
        "queued.max.requests.",
        at_least=-1,
        unit="bytes",
        since="1.0 (KIP-72)",
    )
    max_request_partition_size_limit = integer(
        "max.request.partition.size.limit",
        2_000,
        "How many partitions one answer to DescribeTopicPartitions describes at most; the client goes on from "
        "a cursor.",
        at_least=1,
        unit="partitions",
        since="3.8 (KIP-966)",
        ignored="An answer describes 2000 partitions at most.",
    )
    num_network_threads = integer(
        "num.network.threads",
        3,
        "Kafka's threads for reading and writing sockets.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        ignored=LOOP,
    )
    num_io_threads = integer(
        "num.io.threads",
        8,
        "Kafka's threads for handling requests.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        ignored=LOOP,
    )
    background_threads = integer(
        "background.threads",
        10,
        "Threads for work that is not answering requests: deletion, flushing, checkpoints.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        ignored=LOOP,
    )
    request_timeout_ms = integer(
        "request.timeout.ms",
        30_000,
        "How long this broker waits for the response to a request that it sends to another broker or to the "
        "controller. Fetches of followers have replica.socket.timeout.ms.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    fetch_max_bytes = integer(
        "fetch.max.bytes",
        57_671_680,
        "The most bytes of records in one answer to a fetch, whatever the client asks for. A single larger "
        "batch is still sent, so that the reader goes on.",
        at_least=1_024,
        unit="bytes",
        since="2.5 (KIP-541)",
    )
    max_incremental_fetch_session_cache_slots = integer(
        "max.incremental.fetch.session.cache.slots",
        1_000,
        "How many fetch sessions are kept. A session spares a consumer or follower from naming all its "
        "partitions in every fetch; raise it when more clients than this fetch from a broker. 0 turns "
        "sessions off.",
        at_least=0,
        unit="sessions",
        since="1.1 (KIP-227)",
    )
    fetch_purgatory_purge_interval_requests = integer(
        "fetch.purgatory.purge.interval.requests",
        1_000,
        "How many answered fetches Kafka let pile up among the waiting ones.",
        unit="requests",
        ignored=PURGATORY,
    )
    producer_purgatory_purge_interval_requests = integer(
        "producer.purgatory.purge.interval.requests",
        1_000,
        "How many answered produce requests Kafka let pile up among the waiting ones.",
        unit="requests",
        ignored=PURGATORY,
    )
    delete_records_purgatory_purge_interval_requests = integer(
        "delete.records.purgatory.purge.interval.requests",
        1,
        "How many answered deletions of records Kafka let pile up among the waiting ones.",
        unit="requests",
        since="0.11.0 (KIP-107)",
        ignored=PURGATORY,
    )
