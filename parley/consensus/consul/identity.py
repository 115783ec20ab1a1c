"""The identity of a store in Consul: a key that contains it, and a marker key whose name contains it."""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from urllib.parse import quote

from parley.consensus.consul.http_client import Client
from parley.consensus.consul.key_layout import KeyLayout
from parley.consensus.consul.transactions import encoded, entries, objects, value
from parley.consensus.errors import BadConfig, MaybeApplied, Unauthorized

_IDENTITY = re.compile(r"[0-9a-f]{32}\Z")


class ConsulIdentity:
    """Reads and writes the identity of a store in Consul (``parley.consensus.store_identity.IdentityStorage``)."""

    def __init__(self, client: Client, layout: KeyLayout) -> None:
        self._client = client
        self._layout = layout

    @property
    def place(self) -> str:
        return self._layout.place

    async def read_identity(self) -> str | None:
        """Return the identity, or None if there is none. Raises BadConfig if the key contains something else, and
        Unauthorized if the ACL token may not read it."""
        get = {"Verb": "get", "Key": self._layout.identity}
        response = await self._client.call("PUT", "/v1/txn?consistent", encoded([get]), writes=False)
        if response.status == 409:
            reason = str(objects(response.body, "Errors"))
            if "Permission denied" in reason or "ACL" in reason:
                raise Unauthorized(f"Consul refuses to read {self._layout.identity}: {reason}")
            return None
        if not (found := entries(response.body)):
            raise Unauthorized(f"the ACL token does not permit reading below {self._layout.prefix}/")
        identity = value(found[0]).decode("ascii", "replace")
        if not _IDENTITY.match(identity):
            raise BadConfig(f"{self._layout.identity} in Consul is not the identity of a store; choose another prefix")
        return identity

    async def initialize(self, identity: str) -> None:
        """Write the identity, unless another client has just done so. Raises BadConfig if there are keys below the
        prefix that do not belong to a store, and Unauthorized if the ACL token may not write."""
        if foreign := await self._any_key():
            # The key may belong to a store that another client has created since the first read.
            if await self.read_identity() is None:
                raise BadConfig(f"{self.place} contains keys, but no Parley store: {foreign}; choose another prefix")
            return
        ops = [
            {"Verb": "check-not-exists", "Key": self._layout.identity},
            {"Verb": "set", "Key": self._layout.identity, "Value": base64.b64encode(identity.encode()).decode()},
            {"Verb": "set", "Key": self._layout.marker(identity), "Value": ""},
        ]
        with suppress(MaybeApplied):
            response = await self._client.call("PUT", "/v1/txn", encoded(ops), writes=True)
            if response.status == 409 and "Permission denied" in response.body.decode("utf-8", "replace"):
                raise Unauthorized(f"the ACL token does not permit writing below {self._layout.prefix}/")

    async def _any_key(self) -> str | None:
        """Return a key below the prefix, or None."""
        path = f"/v1/kv/{quote(self._layout.prefix)}/?keys&separator=/&consistent"
        response = await self._client.call("GET", path, writes=False)
        names: list[str] = json.loads(response.body) if response.status == 200 else []
        return names[0] if names else None
