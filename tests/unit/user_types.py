"""mypy --strict over the code of a user of Penstock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import penstock

_SOURCES = Path(penstock.__file__).parents[1]
_CACHE = Path(__file__).parents[2] / ".mypy_cache" / "users"
"""Shared by all tests: to read PySpark and Penstock for the first time takes most of a minute on a slow machine."""


def checked_types(directory: Path, *targets: str) -> str:
    """What mypy says of `targets` in `directory`, and not of Penstock itself, as if that were installed."""
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(_CACHE)]
    environment = os.environ | {"MYPYPATH": str(_SOURCES)}
    done = subprocess.run(
        [*command, *targets],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return done.stdout + done.stderr
