"""Hooks of MkDocs for links that lead outside ``docs/``: the linked files become part of the site.

So the site is complete wherever it is served, and pages have the same links on a forge and on the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = "files"
"""The folder of the repository's files on the site."""
CHANGELOG: Final = "changelog.md"
_ROW: Final = re.compile(r"^\|.*$", re.MULTILINE)
_CODE: Final = re.compile(r"(`+).*?\1")
_LEAVING: Final = re.compile(r"\[([^\]]*)\]\(\.\./([^)#\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the changelog, and each file that a page links to."""
    changes = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, CHANGELOG, content=changes))
    linked = {path for page in files.documentation_pages() for _, path in _LEAVING.findall(page.content_string)}
    for path in sorted(linked):
        if (ROOT / path).is_file():
            files.append(File.generated(config, _on_the_site(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Redirect links to files to their copies on the site. Links to folders become plain text."""
    return _LEAVING.sub(_link, without_escaped_bars(markdown))


def without_escaped_bars(text: str) -> str:
    """Remove the backslashes before bars in tables' code: a forge needs them, but MkDocs would show them."""
    return _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), text)


def _link(found: re.Match[str]) -> str:
    text, path = found.groups()
    return f"`{text.strip('`')}`" if (ROOT / path).is_dir() else f"[{text}]({_on_the_site(path)})"


def _on_the_site(path: str) -> str:
    """Return the path of a file's copy on the site. A Markdown file gets the suffix ``.txt``: otherwise MkDocs would
    turn it into a page, with links to files that the site lacks."""
    return f"{FOLDER}/{path}{'.txt' if path.endswith('.md') else ''}"
