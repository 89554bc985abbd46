"""The files of the page: fetched in one round, compressed, and kept by browsers until one of them changes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from penstock.dashboard.assets import STATIC, Assets
from tests.unit.dashboard.kit import Client

MODULES = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js")} - {"theme.js"}
LATER = {f"views/{name}.js" for name in ("checkpoints", "configuration", "metrics", "profiler", "recovery", "state")}
LATER |= {"views/watermarks.js", "chart.js", "bar_chart.js", "line_chart.js", "flame.js"}
"""Modules that no view needs but those that are opened later."""


def client(assets: Assets) -> Client:
    return Client(Starlette(routes=[Route("/", assets.page), Route("/static/{path:path}", assets.file)]))


def test_the_page_links_every_module_of_its_first_view_so_that_none_waits_for_the_import_of_another() -> None:
    assets = Assets()
    page = client(assets).get("/").text
    linked = re.findall(r'<link rel="modulepreload" href="static/([0-9a-f]{16})/([^"]+)">', page)
    assert {name for _, name in linked} == MODULES - LATER and {version for version, _ in linked} == {assets.version}
    assert re.findall(r'"static/(?![0-9a-f]{16}/)', page) == [], "an address without a version is fetched each time"


def test_a_file_under_its_version_may_be_kept_and_under_its_name_alone_may_not() -> None:
    assets = Assets()
    for name in ("main.js", "views/graph.js", "style.css", "icon.svg"):
        kept = client(assets).get(f"/static/{assets.version}/{name}")
        assert kept.status_code == 200 and "immutable" in kept.headers["cache-control"]
        plain = client(assets).get(f"/static/{name}")
        assert plain.content == kept.content == (STATIC / name).read_bytes()
        assert "cache-control" not in plain.headers
    assert client(assets).get("/").headers["content-type"].startswith("text/html")
    assert client(assets).get("/static/main.js").headers["content-type"].startswith("text/javascript")
    assert client(assets).get("/static/icon.svg").headers["content-type"] == "image/svg+xml"


def test_a_change_of_one_file_is_another_version(tmp_path: Path) -> None:
    copy = tmp_path / "static"
    shutil.copytree(STATIC, copy)
    assert Assets(copy).version == Assets().version
    changed = copy / "views" / "graph.js"
    # Of the same length: the content counts.
    changed.write_bytes(changed.read_bytes().swapcase())
    assert Assets(copy).version != Assets().version


def test_files_are_compressed_for_browsers_that_can_read_it() -> None:
    ask = client(Assets()).get
    assert "content-encoding" not in ask("/static/main.js", headers={"Accept-Encoding": "identity"}).headers
    packed = ask("/static/main.js", headers={"Accept-Encoding": "gzip, br"})
    assert packed.headers["content-encoding"] == "gzip" and packed.headers["vary"] == "Accept-Encoding"
    assert int(packed.headers["content-length"]) < len(packed.content) == (STATIC / "main.js").stat().st_size


@pytest.mark.parametrize("path", ["nothing.js", "index.html", "../app.py", "0123456789abcdef/main.js"])
def test_nothing_else_is_a_file_of_the_page(path: str) -> None:
    assert client(Assets()).get(f"/static/{path}").status_code == 404
