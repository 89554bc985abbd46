"""After a power failure everything is there that a store has promised, and nothing that it has deleted.

The model knows of each directory what was in it when it was synced last: that is what a disk may be left with at worst.
Two stores and somebody who syncs nothing work on the same few paths, the latter also in the middle of a call of the
others; whenever a call returns, what it has promised must be so by the model.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.storage import LocalStore

PATHS = ["a/1", "a/2", "a/b/1", "a/b/2", "a/b/c/1", "d/1", "d/e/1", "0"]
DIRECTORIES = ["a", "a/b", "a/b/c", "d", "d/e"]


class Platter:
    """What a power failure would leave of the directory `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._durable: dict[int, dict[str, int]] = {}
        # An inode that is open is not given out again, so that its number stands for one directory only.
        self._open: list[int] = []
        self.note_directory(root)
        self.meddle: Callable[[], None] = lambda: None
        """What somebody else does just before a system call."""

    def note_directory(self, path: str | Path, dir_fd: int | None = None) -> None:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
        self._open.append(descriptor)
        self._durable[os.fstat(descriptor).st_ino] = {}

    def sync(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        # Some file systems do nothing at all for a directory that was removed.
        if inode in self._durable and os.fstat(descriptor).st_nlink > 0:
            with os.scandir(descriptor) as entries:
                self._durable[inode] = {entry.name: entry.inode() for entry in entries}

    def inode_at(self, path: str) -> int | None:
        inode: int | None = os.stat(self.root).st_ino
        for name in path.split("/"):
            inode = self._durable.get(inode, {}).get(name) if inode is not None else None
        return inode

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)


@pytest.fixture
def platter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platter]:
    platter = Platter(tmp_path)
    mkdir = os.mkdir

    def make(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        mkdir(path, mode, dir_fd=dir_fd)
        platter.note_directory(path, dir_fd)

    monkeypatch.setattr(os, "mkdir", make)
    monkeypatch.setattr(os, "fsync", platter.sync)
    for name in ("open", "fsync", "link", "replace", "unlink", "mkdir", "rmdir"):
        monkeypatch.setattr(os, name, meddled_with(platter, getattr(os, name)))
    yield platter
    platter.close()


def meddled_with(platter: Platter, call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*arguments: Any, **options: Any) -> Any:
        # Who meddles makes system calls too.
        meddle, platter.meddle = platter.meddle, lambda: None
        meddle()
        platter.meddle = meddle
        return call(*arguments, **options)

    return wrapper


def make_or_remove_directories(root: Path, rng: random.Random) -> None:
    """Does what another process may do that has not come to syncing it yet."""
    directory = root / rng.choice(DIRECTORIES)
    if rng.random() < 0.5:
        os.makedirs(directory, exist_ok=True)
    while directory != root and directory.exists() and not any(directory.iterdir()):
        directory.rmdir()
        directory = directory.parent
    if rng.random() < 0.5:
        os.makedirs(root / rng.choice(DIRECTORIES), exist_ok=True)


def work(store: LocalStore, platter: Platter, rng: random.Random) -> None:
    path = rng.choice(PATHS)
    match rng.randrange(3):
        case 0:
            store.create(path, b"created")
            assert platter.inode_at(path) == os.stat(platter.root / path).st_ino
        case 1:
            store.write(path, [b"written"])
            assert platter.inode_at(path) == os.stat(platter.root / path).st_ino
        case _:
            doomed = rng.sample(PATHS, rng.randint(1, 4))
            store.delete(*doomed)
            assert [platter.inode_at(each) for each in doomed] == [None] * len(doomed)


@pytest.mark.parametrize("seed", range(20))
def test_what_a_store_has_promised_outlives_a_power_failure(tmp_path: Path, platter: Platter, seed: int) -> None:
    rng = random.Random(seed)
    stores = [LocalStore(tmp_path), LocalStore(tmp_path)]

    def meddle() -> None:
        if rng.random() < 0.1:
            make_or_remove_directories(tmp_path, rng)

    for _ in range(200):
        if rng.random() < 0.3:
            (tmp_path / rng.choice(PATHS)).unlink(missing_ok=True)
            make_or_remove_directories(tmp_path, rng)
        platter.meddle = meddle
        work(rng.choice(stores), platter, rng)
        platter.meddle = lambda: None


def test_the_model_would_notice(tmp_path: Path, platter: Platter, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    store.write("a/1", [b"x"])
    assert platter.inode_at("a/1") is None
