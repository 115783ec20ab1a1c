"""The address that a broker's ``zookeeper.*`` keys specify (``config_keys`` defines the keys).

``zookeeper.connect`` names the servers. The other keys become options of the address; secrets are passed separately.
"""

from __future__ import annotations

from urllib.parse import urlencode

from parley.consensus.errors import BadConfig
from parley.consensus.store_config import Given
from parley.consensus.urls import parse_servers

DEFAULT_PORT = 2181

_KEYSTORE_TYPES = ("PEM", "PKCS12", "JKS")
"""JKS is included because keystores that are actually PKCS #12 are often declared as JKS."""
_OPTIONS = {
    "zookeeper.set.acl": "acl",
    "zookeeper.connection.timeout.ms": "connect-timeout-ms",
    "zookeeper.ssl.client.enable": "tls",
    "zookeeper.ssl.truststore.location": "ca-file",
}
_SECRETS = {
    "zookeeper.ssl.keystore.password": "key_password",
    "zookeeper.ssl.truststore.password": "ca_password",
}


def address(given: Given) -> str:
    """Return the address that ``zookeeper.connect`` and the related keys specify. It contains no secret.

    Raises BadConfig if a value is malformed.
    """
    options = _options(given)
    return _servers(given["zookeeper.connect"].strip()) + (f"?{urlencode(options, safe='/:')}" if options else "")


def secrets(given: Given) -> dict[str, str]:
    """Return the passwords of ``zookeeper.ssl.*`` as options for ``ZookeeperBackend.from_url``."""
    return {option: given[key] for key, option in _SECRETS.items() if given.get(key)}


def _servers(connect: str) -> str:
    servers, slash, chroot = connect.partition("/")
    chroot = chroot.rstrip("/")
    source, expected = f"zookeeper.connect={connect!r}", "host:port[,host:port...][/chroot]"
    if "//" in f"/{chroot}":
        raise BadConfig(f"{source}: expected {expected}")
    parse_servers(servers, default_port=DEFAULT_PORT, source=source, expected=expected)
    as_written = ",".join(server.strip() for server in servers.split(","))
    return f"zookeeper://{as_written}{slash if chroot else ''}{chroot}"


def _options(given: Given) -> dict[str, str]:
    options = {option: given[key] for key, option in _OPTIONS.items() if given.get(key)}
    if "connect-timeout-ms" not in options and (session_ms := given.get("zookeeper.session.timeout.ms")):
        options["connect-timeout-ms"] = session_ms
    if options.get("tls", "true").lower() == "true":
        if keystore := given.get("zookeeper.ssl.keystore.location"):
            options |= {"cert-file": keystore, "key-file": keystore}
        if given.get("zookeeper.ssl.endpoint.identification.algorithm", "HTTPS") == "" and "tls" in options:
            options["verify-host"] = "false"
    else:
        options.pop("ca-file", None)
    for key in ("zookeeper.ssl.keystore.type", "zookeeper.ssl.truststore.type"):
        if given.get(key, "PEM").upper() not in _KEYSTORE_TYPES:
            raise BadConfig(f"{key}={given[key]}: only PEM and PKCS12 can be read")
    return options
