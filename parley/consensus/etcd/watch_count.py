"""The number of watches open on etcd's servers, from ``/metrics`` of their client ports."""

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
    """Return the number of watches open on all servers of the address; unknown if any server does not report it."""
    found = await asyncio.gather(*(asyncio.to_thread(_read_metric, address, each) for each in address.endpoints))
    counts = [count for count in found if isinstance(count, int)]
    if len(counts) < len(found):
        problem = next(each for each in found if isinstance(each, str))
        return WatchCount(None, f"a server of the address does not report its metrics: {problem}")
    return WatchCount(sum(counts), f"etcd's metrics, of {len(counts)} server{'s' if len(counts) > 1 else ''}")


def _read_metric(address: Address, endpoint: str) -> int | str:
    """Return the number of watches on one server, or the reason why it is unknown."""
    try:
        context = None
        if address.tls:
            context = ssl.create_default_context(cafile=address.ca_file)
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # accept what Python before 3.13 accepted
            if address.cert_file is not None:
                context.load_cert_chain(address.cert_file, address.key_file)
        url = f"{'https' if address.tls else 'http'}://{endpoint}/metrics"
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(url, timeout=TIMEOUT_S) as response:
            text = response.read().decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        return f"{endpoint}: {error}"
    match = _METRIC.search(text)
    return int(float(match[1])) if match else f"{endpoint} has no such metric"
