"""Checks of reading, writing and listing single keys."""

from __future__ import annotations

import asyncio

from parley.consensus.backend import ABSENT, ANY, PRESENT, At, Backend, Check, Delete, Op, Put, Revision
from parley.consensus.conformance.lab import LONG_TTL_MS, Lab, check, equal, everything, refused, require
from parley.consensus.errors import AlreadyExists, Conflict, LimitExceeded, NotFound, TooLarge, TooManyOps
from parley.consensus.keys import segment, text_of


@check("kv-exact")
async def _exact(lab: Lab) -> None:
    """Every value is returned byte for byte, under every legal key, to every client; a missing key is None."""
    one, two = await lab.client(), await lab.client()
    equal(await one.get("absent"), None, "a key that was never written")
    equal(await one.delete("absent"), False, "deleting it")
    equal((await one.list("", limit=1)).entries, (), "listing an empty store")
    values = [b"", b"\0", bytes(range(256)), b"\xff" * 300, "grüße 😀".encode(), b"1 00\n", lab.rng.randbytes(10_000)]
    texts = ["", ".", "..", "/", "ü", "😀", "\udcff", "a b", "%2F", "\n", "\0", "\x7f", "A" * 60]
    keys = ["!", "~", "-/-", "a", "a/b", "a/b/c", "z" * 200, "%", '"', "*", "[a]?", "$x", "\\", "a:b;c", "a#b"]
    keys += [f"text/{segment(text)}" for text in texts]
    equal([text_of(segment(text)) for text in texts], texts, "texts as segments and back")
    for n, key in enumerate(keys):
        value = values[n % len(values)]
        revision = await one.put(key, value)
        for client in (one, two):
            entry = await client.get(key)
            require(entry is not None, f"{key!r} was put and is absent")
            assert entry is not None
            found = (entry.key, entry.value, entry.revision, entry.session)
            equal(found, (key, value, revision, None), f"the entry of {key!r}")
    equal(await everything(two), {key: values[n % len(values)] for n, key in enumerate(keys)}, "the listing")
    for key in keys:
        equal(await two.delete(key), True, f"deleting {key!r}")
        equal(await one.get(key), None, f"{key!r} after its deletion")


@check("kv-expectations")
async def _expectations(lab: Lab) -> None:
    """ANY, ABSENT, PRESENT and At mean the same for put and delete, from the first revision on."""
    client = await lab.client()
    foreign = At(await client.put("other", b""))
    for expect, error in ((PRESENT, NotFound), (foreign, Conflict)):
        async with refused(error, f"put expecting {expect} of an absent key"):
            await client.put("a", b"0", expect=expect)
        async with refused(error, f"delete expecting {expect} of an absent key"):
            await client.delete("a", expect=expect)
    equal(await client.get("a"), None, "the key after refused puts")
    first = await client.put("a", b"1", expect=ABSENT)
    try:
        await client.put("a", b"2", expect=ABSENT)
    except AlreadyExists as caught:
        equal(caught.key, "a", "the key that the error names")
    else:
        require(False, "ABSENT was expected of a present key and the put succeeded")
    second = await client.put("a", b"2", expect=At(first))
    third = await client.put("a", b"2", expect=At(second))
    require(third != second, "a put of the same value must get another revision")
    for stale in (first, second):
        async with refused(Conflict, "put at an old revision"):
            await client.put("a", b"stale", expect=At(stale))
        async with refused(Conflict, "delete at an old revision"):
            await client.delete("a", expect=At(stale))
    for nonsense in (Revision(0), Revision(-1), Revision(None), Revision("1"), Revision(("zxid", 1)), foreign.revision):
        async with refused(Conflict, "put at the revision of another key"):
            await client.put("a", b"stale", expect=At(nonsense))
    entry = await client.get("a")
    equal(entry and (entry.value, entry.revision), (b"2", third), "the key after refused puts")
    fourth = await client.put("a", b"3", expect=PRESENT)
    await client.put("a", b"4", expect=ANY)
    async with refused(ValueError, "deleting while expecting ABSENT"):
        await client.delete("a", expect=ABSENT)
    async with refused(Conflict, "delete at an old revision"):
        await client.delete("a", expect=At(fourth))
    equal(await client.delete("a", expect=PRESENT), True, "deleting a present key")
    again = await client.put("a", b"5", expect=ABSENT)
    equal(await client.delete("a", expect=At(again)), True, "deleting at the revision it has")


@check("kv-revisions-never-repeat")
async def _revisions(lab: Lab) -> None:
    """A key that is deleted and created again never gets an earlier revision, whatever deleted it."""
    client = await lab.client()
    seen: set[Revision] = set()

    async def note(revision: Revision | None) -> None:
        require(revision is not None and revision not in seen, f"a revision was used twice: {revision}")
        assert revision is not None
        entry = await client.get("a")
        equal(entry and entry.revision, revision, "the revision read")
        seen.add(revision)

    for n in range(12):
        session = await client.open_session(LONG_TTL_MS) if n % 3 == 2 else None
        await note(await client.put("a", b"same", session=session))
        await note((await client.txn([], [Put("a", b"same", session)])).revisions[0])
        match n % 3:
            case 0:
                await client.delete("a")
            case 1:
                await client.txn([], [Delete("a")])
            case _:
                assert session is not None
                await session.close()
        for old in seen:
            async with refused(Conflict, "put at the revision of a deleted key"):
                await client.put("a", b"", expect=At(old))
    equal(len(seen), 24, "different revisions")


@check("kv-order")
async def _order(lab: Lab) -> None:
    """Listings are sorted bytewise and contain exactly the keys that start with the prefix, whatever its text."""
    client = await lab.client()
    keys = ["!", "A", "Z", "a", "a!", "a-", "a/0", "a/10", "a/9", "a/b/c", "a0", "aa", "b", "b/~", "b/~~", "~", "~~/~"]
    shuffled = list(keys)
    lab.rng.shuffle(shuffled)
    for key in shuffled:
        await client.put(key, key.encode())
    prefixes = ["", "a", "a/", "a/1", "a/b", "a/b/c", "b/~", "~", "~~~", "none", "A/", "/", "a//", "%", "_", "*", "\\"]
    for prefix in [*prefixes, "\x7f", "ÿ", "a/ÿ", "\U0010ffff", "a\0", "\ud800"]:
        expected = [key for key in keys if key.startswith(prefix)]
        page = await client.list(prefix, limit=100)
        equal([entry.key for entry in page.entries], expected, f"the keys below {prefix!r}")
        equal(page.next_after, None, f"next_after after all keys below {prefix!r}")
        require(all(entry.value == entry.key.encode() for entry in page.entries), f"values below {prefix!r}")
    for after in ["", "a", "a/", "a/5", "\x7f", "~~~"]:
        page = await client.list("a", limit=100, after=after)
        expected = [key for key in keys if key.startswith("a") and key > after]
        equal([entry.key for entry in page.entries], expected, f"the keys after {after!r}")
    for limit in range(1, len(keys) + 2):
        page = await client.list("", limit=limit)
        equal([entry.key for entry in page.entries], keys[:limit], f"the first {limit} keys")
        equal(page.next_after, keys[limit - 1] if limit < len(keys) else None, f"next_after of a limit of {limit}")


PAGED_KEYS = 10_000
"""The number of keys in the check ``kv-paging``. A test without time for all of them may lower it."""


@check("kv-paging")
async def _paging(lab: Lab) -> None:
    """10,000 keys are listed page by page: each once, in order, for every page size; a limit above the maximum is
    lowered."""
    client = await lab.client()
    keys = sorted(f"page/{n % 7}/{n:x}" for n in range(PAGED_KEYS))
    await _put_all(client, [Put(key, b"v" + key.encode()) for key in keys])
    await client.put("page0", b"")
    limit_max = client.capabilities.list_limit_max
    for limit in (1000, 777, limit_max, limit_max + 1, 1 << 31):
        found: list[str] = []
        after: str | None = None
        while True:
            page = await client.list("page/", limit=limit, after=after)
            require(len(page.entries) <= min(limit, limit_max), f"a page of {len(page.entries)} for a limit of {limit}")
            require(all(e.value == b"v" + e.key.encode() for e in page.entries), "a value of another key")
            found += [entry.key for entry in page.entries]
            if (after := page.next_after) is None:
                break
            equal(after, found[-1], "next_after")
        equal(found, keys, f"{PAGED_KEYS:,} keys by pages of {limit}")
    for limit in (0, -1):
        async with refused(ValueError, f"a page of {limit}"):
            await client.list("", limit=limit)


async def _put_all(client: Backend, ops: list[Op]) -> None:
    step = min(client.capabilities.txn_ops_max, 500)
    for start in range(0, len(ops), step):
        await client.txn([], ops[start : start + step])


@check("kv-limits")
async def _limits(lab: Lab) -> None:
    """The store takes everything within its declared limits. One byte or operation more is refused, and nothing is
    applied."""
    client = await lab.client()
    limits = client.capabilities
    require(limits.name, "Capabilities.name is empty")
    require(limits.key_bytes_max >= 400, "keys of 400 bytes are needed (a topic's name has up to 249)")
    require(limits.value_bytes_max >= 64 << 10, "values of 64 KiB are needed")
    require(limits.txn_ops_max >= 16, "transactions of 16 checks and operations are needed")
    require(limits.txn_bytes_max >= limits.value_bytes_max, "a transaction must hold the largest value")
    require(limits.list_limit_max >= 1, "a page has at least one entry")
    key = "/".join(["k" * 100] * 20)[: limits.key_bytes_max].rstrip("/")
    key += "k" * (limits.key_bytes_max - len(key))
    await client.put(key, b"longest")
    for call in (client.get(key + "k"), client.put(key + "k", b""), client.delete(key + "k")):
        async with refused(TooLarge, "a key of one byte too many"):
            await call
    largest = min(limits.value_bytes_max, limits.txn_bytes_max - 5)
    value = lab.rng.randbytes(largest)
    await client.put("value", value)
    entry = await client.get("value")
    require(entry is not None and entry.value == value, "the largest value was returned changed")
    await _too_large(client, [], [Put("value", bytes(limits.value_bytes_max + 1))])
    equal((entry := await client.get("value")) and entry.value == value, True, "the value after a refused put")
    await client.delete("value")
    ops: list[Op] = [Put(f"ops/{n}", b"v") for n in range(limits.txn_ops_max + 1)]
    await client.txn([], ops[:-1])
    equal(len(await everything(client, "ops/")), limits.txn_ops_max, "keys of the largest transaction")
    for checks, more in (([], ops), ([Check("a", ABSENT)], ops[1:]), ([Check("a", ABSENT)] * len(ops), [])):
        try:
            await client.txn(checks, more)
        except TooManyOps as error:
            equal((error.count, error.limit), (len(ops), limits.txn_ops_max), "the numbers in the error")
        else:
            require(False, f"a transaction of {len(ops)} was accepted; the store declares {limits.txn_ops_max}")
    equal(await client.get(f"ops/{limits.txn_ops_max}"), None, "a key of a refused transaction")
    await _fill(client, limits.txn_bytes_max, limits.value_bytes_max, limits.txn_ops_max)


async def _fill(client: Backend, txn_bytes: int, value_bytes: int, txn_ops: int) -> None:
    """Check the limit on the bytes of a transaction, if the limits on values and operations allow reaching it."""
    ops: list[Op] = []
    left = txn_bytes
    while left > 8 and len(ops) < min(txn_ops, 90):
        size = min(left - 7, value_bytes)
        ops.append(Put(f"fill/{len(ops):02}", bytes(size)))
        left -= size + 7
    await client.txn([], ops)
    equal(len(await everything(client, "fill/", limit=4)), len(ops), "keys of the heaviest transaction")
    if left <= 8 and len(ops) < txn_ops:
        await _too_large(client, [], [*ops, Put("over", bytes(9))])
        equal(await client.get("over"), None, "a key of a refused transaction")


async def _too_large(client: Backend, checks: list[Check], ops: list[Op]) -> None:
    try:
        await client.txn(checks, ops)
    except TooLarge as error:
        require(error.size > error.limit, f"the size in the error must be above the limit: {error}")
    except LimitExceeded as error:
        require(False, f"expected TooLarge, got {error!r}")
    else:
        require(False, "more bytes than declared were accepted")


@check("kv-illegal")
async def _illegal(lab: Lab) -> None:
    """Illegal keys and calls are rejected as programming errors, and nothing is applied."""
    client = await lab.client()
    for key in ("", "/", "/a", "a/", "a//b", ".", "..", "a/.", "../a", "a/../b", "a b", "a\n", "a\0", "ü", "a\x7f"):
        for call in (client.get(key), client.put(key, b""), client.delete(key), client.txn([Check(key, ANY)], [])):
            async with refused(ValueError, f"the key {key!r}"):
                await call
    for second in (Put("a", b"2"), Delete("a")):
        async with refused(ValueError, "two operations on one key"):
            await client.txn([], [Put("a", b"1"), second])
    equal(await everything(client), {}, "the store after refused calls")


@check("kv-concurrent-increments")
async def _increments(lab: Lab) -> None:
    """A counter that several processes increment by compare-and-set is exact."""
    client = await lab.client()
    peers = [await lab.peer("increment", key="counter", times=60) for _ in range(4)]
    for peer in peers:
        await lab.said(peer, "ready")
    started = asyncio.get_running_loop().time()
    await client.put("go", b"")
    for peer in peers:
        await lab.said(peer, "done", 240)
    entry = await client.get("counter")
    equal(entry and entry.value, b"240", "the counter after 4 x 60 increments")
    lab.measured("contended increments", 240 / (asyncio.get_running_loop().time() - started), "per second")
