"""The repository says nothing about the machine or the network it was written on, and pins what it installs.

A clone must work behind any mirror of the package indexes, so no file may name an index; and nobody else has the
directories of the machine where a file was made.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

# The patterns are put together from pieces, so that this file does not match itself.
INDEX_HOSTS = ("pypi", "pythonhosted", "npmjs", "maven", r"deb\.debian")
FOREIGN_DIRECTORIES = ("work", "root")
FORBIDDEN = re.compile(
    "|".join(
        [
            # Mirrors have the name of what they mirror in their path, so the whole address is searched.
            rf"https?:/{'/'}[^\s\"'<>]*(?:{'|'.join(INDEX_HOSTS)})",
            *(f"/{directory}/" for directory in FOREIGN_DIRECTORIES),
        ]
    ).encode()
)

# Only used where git cannot tell what belongs to the repository, as in an unpacked archive.
GENERATED = frozenset(
    {".git", ".venv", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__", "build", "dist"}
)


def files_of(repository: Path) -> list[Path]:
    """The files that git tracks or would add: what is found before a commit need not be removed from history."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=repository, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        listing = ""
    names = [name for name in listing.split("\0") if name]
    if not names:
        paths = (path.relative_to(repository) for path in repository.rglob("*"))
        names = [str(path) for path in paths if GENERATED.isdisjoint(path.parts) and ".egg-info" not in str(path)]
    return sorted(path for path in (repository / name for name in set(names)) if path.is_file())


def unclean_lines(repository: Path) -> list[str]:
    """`file:line: match` for everything that ties the repository to one machine or network."""
    return [
        f"{path.relative_to(repository)}:{number}: {match[0].decode(errors='replace')}"
        for path in files_of(repository)
        for number, line in enumerate(path.read_bytes().splitlines(), start=1)
        if (match := FORBIDDEN.search(line))
    ]


def loose_requirements(text: str) -> list[str]:
    """The requirements in `text` that pip would not check against a hash, and the options that redirect it."""
    joined = text.replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    pinned = re.compile(r"[A-Za-z0-9._-]+(\[[^\]]*\])?==\S+(\s*;[^-]*(-(?!-)[^-]*)*)?(\s+--hash=sha256:[0-9a-f]{64})+")
    return [line for line in lines if not pinned.fullmatch(line)]


def test_no_file_names_a_package_index_or_a_directory_of_this_machine() -> None:
    assert unclean_lines(REPOSITORY) == []


def test_every_requirement_is_pinned_with_a_hash() -> None:
    text = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8")
    assert "pyspark==" in text
    assert loose_requirements(text) == []


@pytest.mark.parametrize("with_git", [True, False])
def test_forbidden_text_is_found(tmp_path: Path, with_git: bool) -> None:
    planted = {
        "index.txt": f"--index-url https:/{'/'}files.pythonhosted.org/simple",
        "mirror.txt": f"http:/{'/'}mirror.example/pypi/simple",
        "directory.txt": "first line\ncd " + "/".join(["", "root", "penstock"]),
        "nested/directory.txt": "/".join(["", "work", "penstock"]),
        "clean.txt": f"pypi, maven and https:/{'/'}example.org/homework/rooted",
    }
    for name, text in planted.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if with_git:
        subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    assert [line.split(": ")[0] for line in unclean_lines(tmp_path)] == [
        "directory.txt:2",
        "index.txt:1",
        "mirror.txt:1",
        "nested/directory.txt:1",
    ]


@pytest.mark.parametrize(
    "loose",
    [
        "pyarrow==26.0.1",
        "pyarrow>=26",
        "pyarrow",
        "pyarrow==26.0.1 --hash=sha256:abc",
        "--find-links wheels",
        "penstock @ file:///somewhere",
        "-e .",
        "colorama==0.4.6 ; sys_platform == 'win32'",
    ],
)
def test_a_requirement_without_a_hash_is_found(loose: str) -> None:
    strict = f"# a comment\nnumpy==2.4.6 ; python_version < '3.13' \\\n    --hash=sha256:{'0' * 64}\n"
    assert loose_requirements(strict) == []
    assert loose_requirements(strict + loose) == [loose]
