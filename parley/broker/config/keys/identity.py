"""The identity of a broker, and the store that coordinates its cluster."""

from __future__ import annotations

from parley.broker.config.key_definition import HIGH, Keys, boolean, integer, string, strings


class IdentityKeys(Keys, title="Identity and coordination"):
    """The identity of a broker, and the store that coordinates its cluster."""

    broker_id = integer(
        "broker.id",
        -1,
        "The id of this broker in its cluster. With -1 the cluster assigns an id above reserved.broker.max.id, and "
        "the broker stores it in meta.properties of every log directory. Leave such an id out of the configuration: "
        "the broker reads it from there. node.id is the same setting; set either, or "
        "both to the same value.",
        at_least=-1,
        importance=HIGH,
    )
    node_id = integer(
        "node.id",
        -1,
        "The id of this broker in its cluster, under the name that Kafka uses since 2.8. The same setting as "
        "broker.id.",
        at_least=-1,
        importance=HIGH,
        since="2.8",
    )
    broker_id_generation_enable = boolean(
        "broker.id.generation.enable",
        True,
        "Whether the cluster assigns an id to a broker without one. Turn it off if every broker must be numbered "
        "manually.",
    )
    reserved_broker_max_id = integer(
        "reserved.broker.max.id",
        1_000,
        "The highest id that a configuration may use, unless broker.id.generation.enable is false. Ids assigned by the "
        "cluster start above it. Raise it before you manually assign a higher id.",
        at_least=0,
    )
    broker_rack = string(
        "broker.rack",
        None,
        "The rack, zone or data center of this broker. The replicas of a partition are spread over racks, and a "
        "consumer that specifies its rack can read from a replica there. The value can be any text. Brokers with the "
        "same value are in the same rack.",
        since="0.10.0 (KIP-36)",
    )
    broker_host_label = string(
        "broker.host.label",
        None,
        "The machine on which this broker runs. Brokers with the same value share a machine, and so fail together. The "
        "replicas of a partition are spread over racks first (broker.rack), then over machines. With more replicas "
        "than machines, some share a machine. Without a value, the broker counts as a machine by itself. parley start "
        "--brokers N sets it to the name of the machine. Kafka has no such setting.",
        since="",
    )
    coordination_url = string(
        "coordination.url",
        "",
        "The address of the store that coordinates the brokers of a cluster. Its scheme selects the store: "
        "docs/stores.md lists the supported ones, and packages can register more. A broker does not start if the "
        "scheme is unknown. If this is empty, the keys of a store can name the store (see the sections on stores); "
        "otherwise the broker uses the embedded store in the folder coordination of the first log directory.",
        importance=HIGH,
        since="",
    )
    coordination_session_timeout_ms = integer(
        "coordination.session.timeout.ms",
        9_000,
        "How long the coordination store waits for a sign of life from this broker before it ends the broker's "
        "session. A shorter timeout detects a hanging machine sooner; a longer timeout tolerates pauses of the store "
        "or the network. A killed process is always detected immediately. The value is raised if the store needs a "
        "longer timeout.",
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
        "The listeners of Kafka's controller. The broker does not open listeners that are named here, so that a "
        "configuration written for a Kafka cluster with KRaft starts a Parley broker.",
        importance=HIGH,
        since="2.8",
    )
