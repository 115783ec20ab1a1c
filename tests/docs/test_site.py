"""``make site``: every link has a target, a page loads nothing from another host, and search works without a server."""

from __future__ import annotations

import functools
import html
import json
import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import markdown
import pytest
from markdown_it import MarkdownIt
from mkdocs.config import load_config
from playwright.sync_api import Browser, Page, expect, sync_playwright

from parley.version import VERSION
from website.__main__ import LATEST, build
from website.hooks import without_escaped_bars

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
BESIDE = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
CHROMIUM = "/usr/bin/chromium"
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PATIENCE_MS = 30_000
OLDER = "0.0.9"

NEVER_LOADED = {
    "https://unpkg.com/resize-observer-polyfill": "only for browsers older than those that run the rest of the theme",
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js": "only for a page with a drawing in Mermaid",
    "https://api.github.com": "only if mkdocs.yml names a repository",
    "https://gitlab.com": "only if mkdocs.yml names a repository",
}
"""Addresses in the theme's program, which it requests only if a page or the configuration asks for it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site, with an older version in it. A link or an anchor that leads nowhere fails the build."""
    folder = tmp_path_factory.mktemp("site")
    (folder / OLDER).mkdir()
    (folder / OLDER / "index.html").write_text("older")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> Path:
    return site / VERSION


def test_every_page_has_a_place_in_the_navigation(pages: Path) -> None:
    assert {page.stem for page in PAGES} <= {built.stem for built in pages.glob("*.html")}


def test_versions_are_listed_from_the_newest_on(site: Path) -> None:
    listed = json.loads((site / "versions.json").read_text())
    assert [(each["version"], each["aliases"]) for each in listed] == [(VERSION, [LATEST]), (OLDER, [])]
    assert f"url={VERSION}/index.html" in (site / "index.html").read_text()
    assert (site / OLDER / "index.html").read_text() == "older"


class _Loads(HTMLParser):
    """What a page loads by itself, and where its anchors are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded, self.anchors = set[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.add(given.get("id", ""))
        addresses = [given.get("src"), given.get("srcset"), given.get("data"), given.get("poster")]
        if tag == "link" and given.get("rel") not in {"prev", "next", "canonical"}:
            addresses.append(given.get("href"))
        self.loaded |= {address for address in addresses if address}


def test_nothing_is_loaded_from_another_host(pages: Path) -> None:
    for path in pages.rglob("*.html"):
        assert {each for each in _Loads(path.read_text()).loaded if re.match(r"\w+:|//", each)} == set(), path
        assert 'http-equiv="Content-Security-Policy"' in path.read_text(), path
    for path in [*pages.rglob("*.css"), *pages.rglob("*.svg")]:
        text = path.read_text()
        assert re.findall(r"url\(\s*[\"']?(?:https?:)?//[^)]*", text) == [], path
        assert re.findall(r"@import|\b(?:xlink:)?href=[\"']https?:[^\"']*", text) == [], path


def test_the_programs_of_the_site_request_nothing_from_another_host(pages: Path) -> None:
    for path in [
        *pages.glob("assets/javascripts/*.js"),
        *pages.rglob("workers/*.js"),
        pages / "assets/iframe-worker.js",
    ]:
        program = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        named = re.findall(r"[\"'`](https?://[^\"'`$]+)", program)
        unknown = [each for each in named if not each.startswith((*NEVER_LOADED, "http://www.w3.org/"))]
        assert unknown == [], path
    configured = re.search(r'id="__config".*?>(.*?)</script>', (pages / "index.html").read_text())
    assert configured is not None
    assert "repo" not in json.loads(configured[1])


def test_links_of_files_beside_the_pages_have_anchors(pages: Path) -> None:
    """Those within ``docs/`` fail the build."""
    for path in BESIDE:
        for page, anchor in re.findall(r"\]\((?:docs/)?([\w-]+)\.md#([^)]+)\)", path.read_text()):
            assert anchor in _Loads((pages / f"{page}.html").read_text()).anchors, f"{path.name}: {page}.md#{anchor}"


def _shown(rendered: str) -> list[str]:
    """Return the text of a page, block by block."""
    blocks = re.split(r"</?(?:p|li|ul|ol|td|th|tr|table|thead|tbody|h\d|pre|blockquote|div)\b[^>]*>", rendered)
    texts = (" ".join(html.unescape(re.sub(r"<[^>]+>", "", block)).split()) for block in blocks)
    return [text for text in texts if text]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_a_page_reads_on_the_site_as_on_a_forge(page: Path) -> None:
    """MkDocs has its own Markdown: a list needs a blank line before it, and a bar in a table needs no backslash."""
    settings = load_config(str(ROOT / "mkdocs.yml"))
    configured = {**settings["mdx_configs"], "toc": {}, "pymdownx.highlight": {"use_pygments": False}}
    here = markdown.markdown(
        without_escaped_bars(page.read_text()),
        extensions=settings["markdown_extensions"],
        extension_configs=configured,
    )
    forge = MarkdownIt("commonmark").enable("table").render(page.read_text())
    assert _shown(here) == _shown(forge)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Yield the site behind an HTTP server."""
    handler = functools.partial(_Silent, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class _Reader:
    """A browser that reaches the site and nothing else. ``strayed`` has what it requested elsewhere."""

    def __init__(self, chromium: Browser, start: str) -> None:
        self.context = chromium.new_context(color_scheme="light")
        self.context.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        self.page: Page = self.context.new_page()
        self.strayed, self.wrong = list[str](), list[str]()
        self.page.on(
            "request", lambda request: None if request.url.startswith(start) else self.strayed.append(request.url)
        )
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        self.page.on("response", lambda response: self.wrong.append(response.url) if response.status >= 400 else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))

    def search(self, words: str) -> None:
        self.page.keyboard.press("/")
        self.page.get_by_role("textbox", name="Search").type(words)
        expect(self.page.locator(".md-search-result__link").first).to_be_visible()


@pytest.mark.system
def test_search_and_versions_in_a_browser(chromium: Browser, address: str) -> None:
    reader = _Reader(chromium, address)
    reader.page.goto(address)
    reader.page.wait_for_url(f"{address}/{VERSION}/index.html")
    reader.search("min.insync.replicas")
    expect(reader.page.locator(".md-version__link")).to_have_text([VERSION, OLDER])
    reader.context.close()
    assert (reader.strayed, reader.wrong) == ([], [])


@pytest.mark.system
def test_search_and_both_themes_from_the_file_system(chromium: Browser, pages: Path) -> None:
    reader = _Reader(chromium, "file://")
    reader.page.goto(f"file://{pages}/quickstart.html")
    reader.search("quota")
    reader.page.keyboard.press("Escape")
    body = reader.page.locator("body")
    expect(body).to_have_attribute("data-md-color-scheme", "default")
    reader.page.emulate_media(color_scheme="dark")
    expect(body).to_have_attribute("data-md-color-scheme", "slate")
    reader.page.get_by_title("Light theme").click()
    expect(body).to_have_attribute("data-md-color-scheme", "default")
    reader.context.close()
    assert reader.strayed == []
