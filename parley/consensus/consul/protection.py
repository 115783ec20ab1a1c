"""How a store in Consul is protected: by ACLs, and by TLS."""

from __future__ import annotations

from dataclasses import replace

from parley.consensus.consul.address import Address
from parley.consensus.consul.http_client import Client
from parley.consensus.consul.key_layout import KeyLayout
from parley.consensus.consul.transactions import KV, encoded, entries
from parley.consensus.errors import CoordinationError, Unauthorized
from parley.consensus.protection import Finding, Guard, Protection, of_connection

_ADVICE = (
    'set acl { enabled = true  default_policy = "deny" } on the servers, create a token whose policy allows this '
    "prefix and sessions, and name its file with token-file in coordination.url (docs/stores.md)"
)
_TLS_ADVICE = "set cert_file, key_file and ports.https on the agents, then ca-file in coordination.url"
_NEVER_INDEX = 1
"""Index 1 belongs to Consul's first internal change, so no key has it. A write that expects it changes nothing."""


async def protection_of(address: Address, layout: KeyLayout) -> Protection:
    """Return how the store is protected: try to read, and to write without any effect, as a client without a token."""
    encrypted = all(endpoint.startswith("https:") for endpoint in address.endpoints)
    connection = of_connection(", ".join(address.endpoints), encrypted=encrypted, advice=_TLS_ADVICE)
    return Protection(await _of_tree(replace(address, token_file=None), layout), connection)


async def _of_tree(without_token: Address, layout: KeyLayout) -> Finding:
    write = {"Verb": "cas", "Key": layout.probe("of-a-stranger"), "Index": _NEVER_INDEX, "Value": ""}
    probes: dict[str, KV] = {"read": {"Verb": "get", "Key": layout.identity}, "change": write}
    client = Client(without_token)
    try:
        await client.open()
        for name, probe in probes.items():
            if await _is_allowed(client, probe):
                text = f"clients without a token may {name} {layout.prefix}/"
                return Finding(Guard.OPEN, text, _ADVICE)
    except CoordinationError as error:
        return Finding(Guard.UNKNOWN, str(error), _ADVICE)
    finally:
        await client.close()
    return Finding(Guard.CLOSED, f"clients without a token may neither read nor change {layout.prefix}/")


async def _is_allowed(client: Client, probe: KV) -> bool:
    try:
        response = await client.call("PUT", "/v1/txn", encoded([probe]), writes=False)
    except Unauthorized:
        return False
    if probe["Verb"] == "get":
        return bool(entries(response.body))  # Consul leaves out what the client may not read
    return b"Permission denied" not in response.body
