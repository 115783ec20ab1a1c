"""Write a bundle. Every file is masked, and only the current user may read the archive."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from parley.tools.support_bundle.contents import Contents
from parley.tools.support_bundle.masks import Masks

_README: Final = """\
A support bundle of Parley, created {when}.

{listing}
Secrets are replaced by [hidden]: the values of all settings that are passwords or unknown, and these values
wherever else they occurred; passwords in addresses, private keys, and values after names such as password.
Names of topics, groups, users, hosts and files, and the addresses of clients in logs, are not masked.
Look through the files before you send them.
{missing}"""
_MEANINGS: Final = {
    "versions.json": "versions of Parley, Python and its packages, and of the system",
    "configuration.json": "the settings of the broker's file, as written",
    "topics.json": "the settings of topics that differ from the defaults",
    "machine": "what `parley doctor FILE` found, and the facts behind it",
    "cluster": "what `parley doctor --bootstrap-server` found, the facts behind it, and metrics",
    "logs": "the ends of logs",
}


def write(path: Path, contents: Contents, masks: Masks, when: datetime) -> None:
    """Write the complete archive. If that fails, leaves no file behind. Raises OSError, such as FileExistsError if the
    file exists."""
    stem = path.name.removesuffix(".gz").removesuffix(".tgz").removesuffix(".tar")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in [("README.txt", _readme(contents, when)), *sorted(contents.files.items())]:
                data = _masked(name, text, masks).encode()
                entry = tarfile.TarInfo(f"{stem}/{masks.text(name)}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(when.timestamp())
                archive.addfile(entry, io.BytesIO(data))
    except BaseException:
        path.unlink()
        raise


def _masked(name: str, text: str, masks: Masks) -> str:
    if name.endswith(".json"):  # as data, because a mask in the text could break a string that contains a quote
        return json.dumps(masks.data(json.loads(text)), indent=2) + "\n"
    return masks.text(text)


def _readme(contents: Contents, when: datetime) -> str:
    listing = "".join(f"{line}\n" for line in _listing(contents))
    missing = "".join(f"  {each}\n" for each in contents.missing)
    return _README.format(
        when=when.isoformat(timespec="seconds"), listing=listing, missing=missing and f"\nNot included:\n{missing}"
    )


def _listing(contents: Contents) -> Iterator[str]:
    for name in dict.fromkeys(each.partition("/")[0] for each in sorted(contents.files)):
        yield f"  {name:<20} {_MEANINGS.get(name, '')}".rstrip()
