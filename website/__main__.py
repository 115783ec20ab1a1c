"""``make site``: build the documentation of this version into ``site/VERSION``, in addition to the versions already
there.

``site/versions.json`` contains the list of versions from which readers choose, and ``site/index.html`` redirects to the
newest. The theme reads this list (its version provider). The program ``mike`` writes the same list, but it commits
built pages to a branch of the repository, and a server needs only a folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from parley.version import VERSION

ROOT: Final = Path(__file__).resolve().parents[1]
LATEST: Final = "latest"
_REDIRECT: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><title>Parley</title><link rel="icon" href="{version}/assets/favicon.svg">
<meta http-equiv="refresh" content="0; url={version}/index.html">
</head>
<body><a href="{version}/index.html">The documentation of Parley {version}</a></body>
</html>
"""


def build(folder: Path, version: str = VERSION) -> None:
    """Build the pages of a version, and list the versions in ``folder``. Raises CalledProcessError if a page has a dead
    link or anchor, or is missing from the navigation."""
    pages = folder / version
    shutil.rmtree(pages, ignore_errors=True)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(pages)]
    # The theme warns about a future MkDocs that breaks it; pyproject.toml limits the version.
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    versions = sorted((each.parent.name for each in folder.glob("*/index.html")), key=_order, reverse=True)
    listed = [{"version": each, "title": each, "aliases": [LATEST] if each == versions[0] else []} for each in versions]
    (folder / "versions.json").write_text(json.dumps(listed, indent=2) + "\n")
    (folder / "index.html").write_text(_REDIRECT.format(version=versions[0]))


def _order(version: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that compares numbers by value: 0.10.0 is newer than 0.9.0."""
    return tuple((int(part) if part.isdecimal() else -1, part) for part in version.split("."))


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "site").absolute())
