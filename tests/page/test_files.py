"""The page's files: contrast of the palette, nothing from elsewhere, data never as markup, all of it in the wheel."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "penstock"
STATIC = PACKAGE / "dashboard" / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())

TEXTS = ("ink", "muted", "accent", "good", "warn", "bad")
GROUNDS = ("ground", "surface", "sunken")
# Pairs beside the plain grounds: text on a tint, text on a button, labels on frames of the flame graph.
PAIRS = [(text, ground) for text in TEXTS for ground in GROUNDS] + [
    ("on-accent", "accent"),
    *(
        (text, tint)
        for text in ("ink", "muted")
        for tint in ("bad-tint", "warn-tint", "good-tint", "own", "engine", "library", "operator")
        if (text, tint) not in {("muted", each) for each in ("own", "engine", "library", "operator")}
    ),
    ("bad", "bad-tint"),
    ("warn", "warn-tint"),
    ("good", "good-tint"),
]
# Marks carry no text. Idle is the rest of a bar, and is seen by the absence of the others.
MARKS = ("busy", "backpressured", "start-delay", "alignment", "sync", "async", "manifest", "commit", "strong-line")


def palette() -> dict[str, tuple[str, str]]:
    text = (STATIC / "style.css").read_text(encoding="utf-8")
    found = re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", text)
    return {name: (light, dark) for name, light, dark in found}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_ground_it_stands_on(theme: int) -> None:
    colours = palette()
    weak = {pair: round(contrast(*(colours[name][theme] for name in pair)), 2) for pair in PAIRS}
    assert {pair: value for pair, value in weak.items() if value < 4.5} == {}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_marks_stand_out_from_the_surface(theme: int) -> None:
    colours = palette()
    weak = {name: round(contrast(colours[name][theme], colours["surface"][theme]), 2) for name in MARKS}
    assert {name: value for name, value in weak.items() if value < 3} == {}


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_a_file_of_the_page_needs_nothing_from_elsewhere_and_makes_no_markup_of_data(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    forbidden = [
        r"https?://[a-z]",
        r"@import",
        r"url\((?!#)",
        r"\binnerHTML\b",
        r"\bouterHTML\b",
        r"insertAdjacentHTML",
        r"document\.write",
        r"\beval\(",
        r"new Function",
        r"createContextualFragment",
        r"DOMParser",
        r"srcdoc",
        r"<style",
        r"style=\"",
        r"setAttribute\(\"style",
        r"<script(?! (type=\"module\" )?src=)",
        r" on[a-z]+=\"",
    ]
    assert [pattern for pattern in forbidden if re.search(pattern, text)] == []
    assert text.count("\n") <= 500


def test_every_file_of_the_page_is_in_the_wheel() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["penstock"]
    # In the pattern of setuptools a star does not cross folders.
    names = [path.relative_to(PACKAGE).as_posix() for path in FILES]
    missing = [
        name
        for name in names
        if not any(fnmatch(name, each) and name.count("/") == each.count("/") for each in patterns)
    ]
    assert missing == [] and names


def test_every_module_that_is_imported_exists() -> None:
    for path in FILES:
        if path.suffix == ".js":
            for name in re.findall(r"from \"(\.[^\"]+)\"", path.read_text(encoding="utf-8")):
                assert (path.parent / name).resolve().is_file(), f"{path.name} imports {name}"
