"""Docstrings, comments and messages read as an engineer of the field writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "penstock"
PHRASES = {
    r"\b[Ss]o (many|long|often|soon)\b(?! as\b)": "say which number or time is meant: this number, this long",
    r"\bfor ever\b": "say when it ends, or never",
    r"\bthere is none\b": "say what is missing",
}


@pytest.mark.parametrize("phrase", PHRASES)
def test_no_sentence_of_the_package_uses(phrase: str) -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(phrase, line)
    ]
    assert found == [], PHRASES[phrase]
