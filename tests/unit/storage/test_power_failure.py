"""After a power failure everything is there that a store has promised, and nothing that it has deleted.

Two stores and somebody who syncs nothing work on the same few paths, the latter also in the middle of a call of the
others; whenever a call returns, what it has promised must be so by the model.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.storage import LocalStore
from tests.unit.power_failure import Platter, platter

__all__ = ["platter"]

PATHS = ["a/1", "a/2", "a/b/1", "a/b/2", "a/b/c/1", "d/1", "d/e/1", "0"]
DIRECTORIES = ["a", "a/b", "a/b/c", "d", "d/e"]


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
