"""Hooks of the site's build: see `mkdocs.yml`.

Blocks of code are headed `python runnable`, `python spark` and so on: how the tests run them. A reader of the site
needs the language alone, and the highlighter knows no other heading.

Mermaid diagrams are drawn (`site_diagrams.py`).

`<!-- include README.md#part -->` in a page stands for the lines of README.md between `<!-- part -->` and
`<!-- end of part -->`, so that the first pipeline is written once.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
# MkDocs loads this file alone.
sys.path.insert(0, str(REPOSITORY))

from tools.site_diagrams import drawn  # noqa: E402

_HEADING = re.compile(r"^( *```python) (?:runnable|spark|kafka|postgres)$", re.MULTILINE)
_INCLUDE = re.compile(r"<!-- include (?P<file>[\w.]+)#(?P<part>[a-z-]+) -->")
_EVERY_FILE = re.compile(r"(?P<folder>.+)/\*")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return drawn(_HEADING.sub(r"\1", _INCLUDE.sub(_included, markdown)))


def _included(match: re.Match[str]) -> str:
    text = (REPOSITORY / match["file"]).read_text(encoding="utf-8")
    part = match["part"]
    found = re.search(rf"<!-- {part} -->\n(.*?)<!-- end of {part} -->", text, re.DOTALL)
    if found is None:
        raise ValueError(f"{match['file']} has no lines between <!-- {part} --> and <!-- end of {part} -->")
    return found[1]


def on_config(config: Any) -> Any:
    """A folder in the navigation, `folder/*`, stands for all of its pages: a new decision record needs no entry."""
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def _expanded(item: Any, home: Path) -> Any:
    if isinstance(item, dict):
        return {name: _expanded(value, home) for name, value in item.items()}
    if isinstance(item, list):
        return [page for each in item for page in _pages(each, home)]
    return item


def _pages(item: Any, home: Path) -> list[Any]:
    match = _EVERY_FILE.fullmatch(item) if isinstance(item, str) else None
    if match is None:
        return [_expanded(item, home)]
    return sorted(str(path.relative_to(home)) for path in (home / match["folder"]).glob("*.md"))
