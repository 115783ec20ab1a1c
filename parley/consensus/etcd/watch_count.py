"""What etcd's servers say of their watches, at ``/metrics`` of the ports that clients talk to."""

from __future__ import annotations

import asyncio
import re
import ssl
import urllib.request
from http.client import HTTPException

from parley.consensus.backend import WatchCount
from parley.consensus.etcd.address import Address

TIMEOUT_S = 3.0
_METRIC = re.compile(r"^etcd_debugging_mvcc_watcher_total (\S+)$", re.MULTILINE)


async def watch_count(address: Address) -> WatchCount:
    """The sum over the servers of the address."""
    found = await asyncio.gather(*(asyncio.to_thread(_ask, address, each) for each in address.endpoints))
    told = [count for count in found if isinstance(count, int)]
    if len(told) < len(found):
        silent = next(each for each in found if isinstance(each, str))
        return WatchCount(None, f"not every server of the address tells its metrics: {silent}")
    return WatchCount(sum(told), f"etcd's metrics, of {len(told)} server{'s' if len(told) > 1 else ''}")


def _ask(address: Address, endpoint: str) -> int | str:
    """The number; or why there is none."""
    try:
        context = None
        if address.tls:
            context = ssl.create_default_context(cafile=address.ca_file)
            if address.cert_file is not None:
                context.load_cert_chain(address.cert_file, address.key_file)
        url = f"{'https' if address.tls else 'http'}://{endpoint}/metrics"
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            text = answer.read().decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        return f"{endpoint}: {error}"
    match = _METRIC.search(text)
    return int(float(match[1])) if match else f"{endpoint} has no such metric"
