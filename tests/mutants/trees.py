"""Copies of the tree. Trials run in them, and the work tree is only read once, at the beginning."""

from __future__ import annotations

import compileall
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.mutant import PACKAGE, Mutant

SOURCE = Path("src")


@contextmanager
def pristine_copy(tree: Path) -> Iterator[Path]:
    """A copy of what the simulator and the tests need, compiled, removed at the end whatever happens."""
    with temporary_directory() as directory:
        for name in ("src", "tests"):
            # Files that were compiled elsewhere are left behind: one could be as old and as long as another source.
            shutil.copytree(tree / name, directory / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            compileall.compile_dir(directory / name, quiet=2)
        shutil.copy(tree / "pyproject.toml", directory)
        yield directory


@contextmanager
def planted(pristine: Path, mutant: Mutant) -> Iterator[Path]:
    """A source directory with one mutant, the tests being those of `pristine`. Raises `Stale`."""
    with temporary_directory() as directory:
        source = directory / SOURCE
        # Links: to copy every file would take as long as to try a mutant.
        shutil.copytree(pristine / SOURCE, source, copy_function=os.link)
        mutant.apply(directory)
        # The compiled file is that of the unchanged source, and Python would take it for the mutant's.
        changed = directory / PACKAGE / mutant.file
        for compiled in changed.parent.glob(f"__pycache__/{changed.stem}.*.pyc"):
            compiled.unlink()
        yield source


@contextmanager
def temporary_directory() -> Iterator[Path]:
    # A short name: the tests make sockets in there, whose paths have a limit.
    directory = Path(tempfile.mkdtemp(prefix="mutant-"))
    # Servers that tests start below it may have a user of their own.
    directory.chmod(0o711)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
