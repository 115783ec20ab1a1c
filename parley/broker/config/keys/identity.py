"""Who a broker is, and where the cluster's brokers meet."""

from __future__ import annotations

from parley.broker.config.definition import HIGH, Keys, boolean, integer, string, strings


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
        "The number of this broker in its cluster, by the name that Kafka uses since 2.8. The same thing as broker.id.",
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
        "address that nothing here understands stops the start. Empty: the store that the keys "
        "of a store name (see the sections on stores), else the embedded one in the folder coordination of the first "
        "log directory.",
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
