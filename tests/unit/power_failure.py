"""A model of a power failure: what a disk may be left with at worst.

It knows of each directory the entries that it had when it was synced last, and of each file the bytes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Platter:
    """What a power failure would leave of the directory `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._durable: dict[int, dict[str, int]] = {}
        self._content: dict[int, bytes] = {}
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
        status = os.fstat(descriptor)
        inode = status.st_ino
        # Some file systems do nothing at all for a directory that was removed.
        if inode in self._durable and status.st_nlink > 0:
            with os.scandir(descriptor) as entries:
                self._durable[inode] = {entry.name: entry.inode() for entry in entries}
        elif stat.S_ISREG(status.st_mode):
            self._content[inode] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def inode_at(self, path: str) -> int | None:
        inode: int | None = os.stat(self.root).st_ino
        for name in path.split("/"):
            inode = self._durable.get(inode, {}).get(name) if inode is not None else None
        return inode

    def content_at(self, path: str) -> bytes | None:
        """The bytes of a file that are certainly there; None if there is no such file, or it was never synced."""
        inode = self.inode_at(path)
        return None if inode is None else self._content.get(inode)

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
