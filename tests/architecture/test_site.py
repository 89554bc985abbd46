"""The users' site builds without a warning, needs nothing from elsewhere, and has every public name.

A page is a file on the reader's disk or server. A script, style or font that it fetched from another server would be
missing behind a proxy, and would tell that server who reads.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import penstock
import penstock.testing
from tools.site_diagrams import drawn

REPOSITORY = Path(__file__).parents[2]
REFERENCE = sorted((REPOSITORY / "docs" / "reference").glob("*.md"))

FETCHED = {"script": ("src",), "link": ("href",), "img": ("src",), "source": ("src",), "iframe": ("src",)}
"""Tags that make a browser fetch something, and the attribute that names it. A link for a reader to follow is none."""
_NOT_FETCHED = frozenset({"canonical", "next", "prev", "alternate"})
_STYLE_FETCHES = re.compile(r"(?:@import\s+|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)")


def build(site: Path, repository: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """As `make docs` does, but elsewhere."""
    assert importlib.util.find_spec("mkdocs"), "mkdocs is not installed: `make setup` installs it"
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=repository,
        # A proxy that nobody answers at: a build that fetches something fails.
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


class _Fetches(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag == "link" and given.get("rel") in _NOT_FETCHED:
            return
        self.found += [given[name] or "" for name in FETCHED.get(tag, ()) if name in given]


def is_external(address: str) -> bool:
    return address.startswith(("http://", "https://", "//"))


def external_fetches(name: str, text: str) -> list[str]:
    """Addresses of other servers that a browser would fetch for this file."""
    found = _STYLE_FETCHES.findall(text) if name.endswith((".css", ".html", ".svg")) else []
    if name.endswith(".html"):
        parser = _Fetches()
        parser.feed(text)
        found += [address for address in parser.found if is_external(address)]
    return found


def public_names() -> Iterator[str]:
    yield from (f"penstock.{name}" for name in penstock.__all__ if name != "__version__")
    yield from (f"penstock.testing.{name}" for name in penstock.testing.__all__)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = build(directory)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return directory


def test_the_site_builds_without_a_warning_and_has_its_pages(site: Path) -> None:
    assert (site / "index.html").exists()
    shown = (site / "reference" / "pipelines.html").read_text(encoding="utf-8")
    assert 'id="penstock.KeyedStream.aggregate"' in shown
    quickstart = (site / "quickstart.html").read_text(encoding="utf-8")
    assert "GeneratorSource" in quickstart, "the first pipeline is included from README.md"


def test_the_reference_shows_every_method_of_a_stream(site: Path) -> None:
    shown = (site / "reference" / "pipelines.html").read_text(encoding="utf-8")
    methods = [name for name in dir(penstock.KeyedStream) if not name.startswith("_")]
    assert {"map", "select", "late", "window"} <= set(methods), "methods come from several bases"
    classes = ("Stream", "KeyedStream")
    assert [name for name in methods if not any(f'id="penstock.{each}.{name}"' in shown for each in classes)] == []


def test_every_block_of_code_is_highlighted_and_no_page_shows_its_heading(site: Path) -> None:
    heading = re.compile(r"```|python (?:runnable|spark|kafka|postgres)\b")
    pages = {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in site.glob("**/*.html")}
    # Contributors' pages name the headings in their prose.
    assert [name for name, text in pages.items() if not name.startswith("internals") and heading.search(text)] == []


def test_no_page_fetches_a_script_style_font_or_image_from_elsewhere(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    assert len(files) > 20
    found = {
        str(path.relative_to(site)): fetched
        for path in files
        if (fetched := external_fetches(path.name, path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_diagrams_are_drawn_and_no_page_shows_their_source(site: Path) -> None:
    shown = {path.name: path.read_text(encoding="utf-8") for path in (site / "internals").glob("*.html")}
    assert not [name for name, text in shown.items() if "sequenceDiagram" in text or "stateDiagram" in text]
    assert "TriggerFrame(barrier)</text>" in shown["ARCHITECTURE.html"]
    assert "<td>(start)</td>" in shown["PROTOCOL.html"]


def test_a_diagram_that_cannot_be_drawn_fails_the_build() -> None:
    with pytest.raises(ValueError, match="cannot draw a diagram of kind 'pie'"):
        drawn("text\n\n```mermaid\npie\n    a: 1\n```\n")
    with pytest.raises(ValueError, match="cannot draw 'loop each' of a sequence diagram"):
        drawn("```mermaid\nsequenceDiagram\n    loop each\n```\n")


def test_the_reference_has_every_public_name_once() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in REFERENCE)
    listed = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(public_names()), "add the name to the page of docs/reference that it belongs to"


# --- the checks themselves have teeth ---


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.html", '<script src="https://cdn.example/mermaid.js"></script>'),
        ("page.html", '<link rel="stylesheet" href="//fonts.example/css">'),
        ("page.html", "<style>@import 'https://fonts.example/roboto.css';</style>"),
        ("site.css", "@font-face { src: url(https://fonts.example/roboto.woff2) }"),
        ("picture.svg", "<style>@import url('https://fonts.example/roboto.css');</style>"),
    ],
)
def test_something_that_would_be_fetched_is_found(name: str, text: str) -> None:
    assert len(external_fetches(name, text)) == 1
    assert external_fetches("page.html", '<a href="https://spark.apache.org">Spark</a>') == []


def test_a_broken_link_or_anchor_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Here\n\n[gone](#gone) [away](away.md)\n", encoding="utf-8")
    settings = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    validation = settings[settings.index("validation:") : settings.index("nav:")]
    (tmp_path / "mkdocs.yml").write_text(f"site_name: broken\n{validation}", encoding="utf-8")
    done = build(tmp_path / "site", tmp_path)
    assert done.returncode != 0
    assert "#gone" in done.stderr and "away.md" in done.stderr
