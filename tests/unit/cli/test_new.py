"""`penstock new`: the project passes its own test and mypy --strict, and nothing is overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as package
from tests.unit.cli.kit import penstock
from tests.unit.user_types import checked_types


def test_a_new_project_passes_its_test_and_mypy(tmp_path: Path) -> None:
    home = tmp_path / "page-counts"
    made = penstock("new", home)
    assert made.exit_code == 0, made.output
    assert sorted(path.name for path in home.iterdir()) == [
        ".gitignore",
        "README.md",
        "page_counts.py",
        "pyproject.toml",
        "test_page_counts.py",
    ]
    commands = ["cd", "pip install -e '.[dev]'", "python -m pytest", "penstock run page_counts.py:pipeline"]
    lines = [line.strip() for line in made.stdout.splitlines()[-4:]]
    assert all(line.startswith(said) for line, said in zip(lines, commands, strict=True)), lines
    assert checked_types(home, ".").startswith("Success: no issues found in 2 source files")
    environment = os.environ | {"PYTHONPATH": str(Path(package.__file__).parents[1])}
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert "1 passed" in tested.stdout


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    home = tmp_path / "page_counts"
    home.mkdir()
    assert penstock("new", home).exit_code == 0
    (home / "README.md").write_text("mine", encoding="utf-8")
    again = penstock("new", home)
    assert again.exit_code == 1
    assert "is not empty, and nothing is overwritten" in again.stderr
    assert (home / "README.md").read_text(encoding="utf-8") == "mine"
    file = tmp_path / "a_file"
    file.write_text("mine", encoding="utf-8")
    assert "is a file" in penstock("new", file).stderr


@pytest.mark.parametrize(
    "name", ["Page", "1st", "page counts", "class", "für", ".hidden", "json", "penstock", "pyarrow"]
)
def test_a_name_that_cannot_be_imported_or_is_taken_is_refused(name: str, tmp_path: Path) -> None:
    refused = penstock("new", tmp_path / name)
    assert refused.exit_code == 2
    assert "Invalid value for DIR" in refused.stderr
    assert list(tmp_path.iterdir()) == []
