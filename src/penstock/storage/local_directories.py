"""The directories of a local store, held open: none is reached through a link, none is synced more often than it must.

A file is durable when its directory was synced after it got its name, and so is the entry of that directory in the one
above it, up to the root. To sync all of them for every file costs a flush of the disk for each. What is remembered
instead is one fact for each directory: *its entry in its parent was synced*. It is a fact about this very directory and
not about its name, because another process may do two things at any moment:

- make a directory, and not have synced the one above it yet. So that a directory exists says nothing: a directory that
  was just opened counts as not synced, whoever made it.
- remove an empty directory, and make it again. Then the name leads to another directory, of which nothing is known.

Both are told apart by a descriptor that is kept open. As long as it is, its inode is not given to anybody else, and in
a directory that was removed nothing can be created any more: the kernel answers that it does not exist. Who succeeds in
creating a file through the descriptor thereby knows that the directory was never removed since its entry was synced,
and neither was any directory above it, none of which was ever empty. No further call is needed. On NFS, where
somebody else's client removed it, the answer is that the handle is stale, and means the same.

What nobody but a person does is to move a directory, or put another in its place. A descriptor follows it there. Those
who read or delete therefore compare the directory under the name with the one that is open (`find`); those who write
name their temporary file by its whole path when it gets its final name, which fails if the path leads elsewhere. Not
covered is who moves a directory of a store in use to where it was before, and loses power before that is on the disk.

Below the root every directory is opened relative to the one above it, and never through a symbolic link. A person who
moves a directory that is open, and puts a link to it in its place, is noticed when it is opened the next time; until
then it is still the directory of this store that is written to, and no other.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from penstock.errors import StorageError

KEPT_MAX = 16
"""Directories that stay open between calls: some for the checkpoint in progress, some for those that are pruned."""

GONE = {errno.ENOENT, errno.ESTALE}
"""What a call answers that is made through the descriptor of a directory which was removed."""

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# What systems answer when a directory is asked for, not through a link, and a link is there.
_MAY_BE_LINK = {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}
# What a file system answers that has no way of syncing a directory: there is nothing that we could wait for.
_CANNOT_SYNC_DIRECTORIES = {errno.EINVAL, errno.ENOTSUP}


class OpenDirectory:
    """A directory that is open for as long as anybody refers to this object.

    It is closed by nobody in particular: another thread may be in the middle of a call, and the number of a descriptor
    that was closed is soon given to another file.
    """

    __slots__ = ("_identity", "descriptor", "is_durable", "parent", "path")

    def __init__(self, path: str, descriptor: int, parent: OpenDirectory | None) -> None:
        self.path = path
        """Relative to the root, which is the empty path and has no parent."""
        self.descriptor = descriptor
        self.parent = parent
        self.is_durable = parent is None
        """Whether its entry in `parent` was synced after it was opened."""
        self._identity: tuple[int, int] | None = None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def identity(self) -> tuple[int, int]:
        """What no other directory has while this one is open."""
        if self._identity is None:
            status = os.fstat(self.descriptor)
            self._identity = status.st_dev, status.st_ino
        return self._identity

    def upwards(self) -> Iterator[OpenDirectory]:
        """This directory and those above it, up to the root."""
        directory: OpenDirectory | None = self
        while directory is not None:
            yield directory
            directory = directory.parent


class OpenDirectories:
    """The directories below one root. Any number of threads may use it at once."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._kept: OrderedDict[str, OpenDirectory] = OrderedDict()
        self._lock = threading.Lock()
        self._opening = threading.RLock()
        self._syncing = threading.Lock()

    def full(self, *names: str) -> str:
        """What the operating system calls a path below the root."""
        return os.path.join(self._root, *filter(None, names))

    def reach(self, path: str) -> OpenDirectory:
        """The directory at `path`, made where it is missing; not looked for again if it is open.

        The trap: it may have been removed since, or moved. Who finds out calls `forget` and comes again.
        """
        kept = self._kept_at(path)
        if kept is not None:
            return kept
        # One at a time: what threads know of a directory they must know of the same object.
        with self._opening:
            return self._kept_at(path) or self._keep(self._open(path, self.reach, make=True))

    def find(self, path: str) -> OpenDirectory:
        """The directory that is at `path` now. Raises `FileNotFoundError`."""
        kept = self._kept_at(path)
        if kept is not None:
            if self.is_in_place(kept):
                return kept
            self._drop(path)
        return self._keep(self._open(path, self.find, make=False))

    def find_nearest(self, path: str) -> OpenDirectory:
        """The directory that is at `path` now, or the lowest above it that there is."""
        while path:
            with contextlib.suppress(FileNotFoundError):
                return self.find(path)
            path = path.rpartition("/")[0]
        return self.find(path)

    def is_in_place(self, directory: OpenDirectory) -> bool:
        """Whether the path of `directory` still leads to it."""
        try:
            # Not through a link, unless it is the root.
            status = os.stat(self.full(directory.path), follow_symlinks=directory.parent is None)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (status.st_dev, status.st_ino) == directory.identity

    def forget(self, path: str) -> None:
        """Open `path`, and all above it, anew when they are needed next."""
        while path:
            self._drop(path)
            path = path.rpartition("/")[0]
        self._drop(path)

    def sync(self, directories: Iterable[OpenDirectory]) -> None:
        """Make durable what the entries of `directories` are now, and that the way to them from the root is there."""
        synced = dict.fromkeys(directories)
        for directory in synced:
            sync_directory(directory.descriptor)
        on_the_way = [each for directory in synced for each in directory.upwards()]
        # One at a time: of threads that need the same directory synced, the second finds it done.
        with self._syncing:
            for each in on_the_way:
                if each.parent is None or each.is_durable:
                    continue
                if each.parent not in synced:
                    sync_directory(each.parent.descriptor)
                    synced[each.parent] = None
                each.is_durable = True

    def remove_empty(self, directory: OpenDirectory) -> OpenDirectory:
        """Remove `directory` if it is empty, and so on upwards. Returns the first one that stays."""
        for each in directory.upwards():
            if each.parent is None:
                return each
            try:
                os.rmdir(each.name, dir_fd=each.parent.descriptor)
            except OSError as error:
                if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY}:
                    return each
                if error.errno not in GONE:
                    raise
            self._drop(each.path)
        raise AssertionError("the way up ends at the root")

    def refuse_link(self, directory: OpenDirectory, name: str) -> None:
        """Raise `StorageError` if `name` in `directory` is a symbolic link."""
        path = f"{directory.path}/{name}".lstrip("/")
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISLNK(os.lstat(name, dir_fd=directory.descriptor).st_mode):
                real = os.path.realpath(self.full(path))
                raise StorageError(
                    f"refused path {path!r}: a symbolic link leads out of {self._root!r}, or could, to {real!r}. "
                    "Links below the root are not followed: replace it with its target."
                )

    def _kept_at(self, path: str) -> OpenDirectory | None:
        with self._lock:
            kept = self._kept.get(path)
            if kept is not None:
                self._kept.move_to_end(path)
            return kept

    def _keep(self, directory: OpenDirectory) -> OpenDirectory:
        with self._lock:
            self._kept[directory.path] = directory
            # What falls out is closed when the lock is free again, or later: somebody may be using it.
            dropped = [self._kept.popitem(last=False)[1] for _ in range(len(self._kept) - KEPT_MAX)]
        del dropped
        return directory

    def _drop(self, path: str) -> None:
        with self._lock:
            dropped = self._kept.pop(path, None)
        del dropped

    def _open(self, path: str, open_above: Callable[[str], OpenDirectory], *, make: bool) -> OpenDirectory:
        if not path:
            return OpenDirectory("", self._open_root(), None)
        above, _, name = path.rpartition("/")
        parent = open_above(above)
        try:
            descriptor = self._open_below(parent, name)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent.descriptor)
            descriptor = self._open_below(parent, name)
        return OpenDirectory(path, descriptor, parent)

    def _open_root(self) -> int:
        try:
            return os.open(self._root, _FLAGS)
        except FileNotFoundError:
            # Making it again would turn an unmounted disk into an empty store (I8).
            raise StorageError(f"the directory {self._root!r} is gone. Is its disk still mounted?") from None

    def _open_below(self, parent: OpenDirectory, name: str) -> int:
        try:
            return os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=parent.descriptor)
        except OSError as error:
            if error.errno in _MAY_BE_LINK:
                self.refuse_link(parent, name)
            raise


def sync_directory(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_DIRECTORIES:
            raise
