"""The rooms that users and contributors read most, `api` and `operators`, are typed: `Any` is counted, and bounded.

`Any` switches the type checker off for all that it touches. An argument of a user's function is `object`, a type
variable, or one of the few aliases that say why they cannot be more; state has the type of its handle.
"""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"
ROOMS = ("api", "operators")

ANY_MAX = 90
"""Lower it when you remove one; a higher bound needs a reason."""

_ANY = re.compile(r"\bAny\b")


def any_in(package: Path) -> dict[str, int]:
    """How often each file of the rooms says `Any`."""
    files = [path for room in ROOMS for path in sorted((package / room).rglob("*.py"))]
    counts = {str(path.relative_to(package)): len(_ANY.findall(path.read_text(encoding="utf-8"))) for path in files}
    return {path: count for path, count in counts.items() if count}


def test_any_is_rare_in_the_api_and_the_operators() -> None:
    found = any_in(PACKAGE)
    assert sum(found.values()) <= ANY_MAX, found


def test_every_any_is_counted(tmp_path: Path) -> None:
    for room in ROOMS:
        (tmp_path / room / "deep").mkdir(parents=True)
        (tmp_path / room / "deep" / "file.py").write_text("from typing import Any\nx: dict[str, Any]\ny: Anything\n")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "file.py").write_text("x: Any\n")
    assert any_in(tmp_path) == {"api/deep/file.py": 2, "operators/deep/file.py": 2}
