"""The web console beside a broker."""

from __future__ import annotations

from parley.broker.config.key_definition import LOW, Keys, boolean, string, strings
from parley.broker.config.keys.observability import http_address


def _address(text: str) -> bool:
    return not text or (text.startswith(("http://", "https://")) and http_address(text))


class ConsoleKeys(Keys, title="The console"):
    """The web console that a broker can run in a separate process."""

    console_listener = string(
        "console.listener",
        "",
        "The address, as http://host:port or https://host:port, of the web console that the broker runs in a separate "
        "process. An empty value means no console; port 0 means any free port. With https, the keys "
        "listener.name.console.ssl.* apply. If the listener of console.broker.listener requires no login, everyone "
        "who reaches the console may do what this listener permits.",
        check=_address,
        form="http://host:port, https://host:port, or nothing",
        since="",
    )
    console_broker_listener = string(
        "console.broker.listener",
        "",
        "The listener through which the console connects to the cluster. If it requires a login, each user of the "
        "console logs in with a password. Empty means the first listener other than the inter-broker listener, or "
        "the inter-broker listener if it is the only one.",
        importance=LOW,
        since="",
    )
    console_read_only = boolean(
        "console.read.only",
        False,
        "Whether the console rejects every change.",
        since="",
    )
    console_host_names = strings(
        "console.host.names",
        (),
        "The names under which browsers reach the console, in addition to localhost and IP addresses. The console "
        "rejects requests to other names, as a protection against DNS rebinding.",
        importance=LOW,
        since="",
    )
    console_command_config = string(
        "console.command.config",
        "",
        "A file with client properties of the console, such as schema.registry.*, or ssl.keystore.* if the listener "
        "requires certificates. They override the properties that the console takes from the broker's listener.",
        importance=LOW,
        since="",
    )
    console_connect_urls = strings(
        "console.connect.urls",
        (),
        "The Connect workers whose connectors the console shows, such as http://host:8083: one worker of each group.",
        importance=LOW,
        since="",
    )
    console_schema_registry_url = string(
        "console.schema.registry.url",
        "",
        "The schema registry with which the console decodes records. Empty means none.",
        importance=LOW,
        since="",
    )
