"""Directories that connectors read and write: local ones through the operating system, others through pyarrow.fs.

Names are relative to the place and have forward slashes. `publish` is what exactly-once output rests on: on a local
file system one atomic rename; elsewhere a move, which for object stores is a copy, visible when it is complete.

On a local file system a file survives a power failure when its bytes, its entry in its directory, and the entry of
every directory above it were synced. A directory that exists may have been made by another writer that has not synced
it yet, so each place syncs the whole way itself, once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import urllib.parse
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs

from penstock.errors import PipelineError, StorageError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


@dataclass(frozen=True, slots=True)
class Stamp:
    """By which a change of a file is noticed."""

    size: int
    modified_ns: int
    """0 where the file system does not say."""


class Place(Protocol):
    """A directory and what is below it."""

    def exists(self) -> bool: ...

    def is_file(self) -> bool:
        """Whether it is not a directory but one file."""
        ...

    def files(self, below: str = "") -> list[str]:
        """The names of all files, in no order; none if there is no such directory."""
        ...

    def stamps(self) -> dict[str, Stamp]:
        """The names of all files, with their sizes and times."""
        ...

    def stamp(self, name: str) -> Stamp | None:
        """That of one file, or None if it does not exist."""
        ...

    def open(self, name: str) -> Any:
        """A binary file to read and to seek in."""
        ...

    def create(self, name: str) -> Any:
        """A binary file to write; directories are made as needed. It is durable after `close_durably`."""
        ...

    def close_durably(self, file: Any) -> None:
        """Close what `create` has returned, and come back when it would survive a power failure."""
        ...

    def size(self, name: str) -> int | None:
        """The bytes of a file, or None if it does not exist."""
        ...

    def publish(self, staged: str, final: str) -> None:
        """Rename a file, durably."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...


def address_of(path: str) -> str:
    """A path or URL as a checkpoint may record it: without user, password and query, which may hold secrets."""
    if _SCHEME.match(path) is None:
        return path.rstrip("/") or "/"
    parts = urllib.parse.urlsplit(path)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def place_of(path: str | os.PathLike[str]) -> Place:
    """The place at a path or a URL. Raises `PipelineError` if nobody knows such URLs."""
    text = os.fspath(path)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return LocalPlace(os.path.abspath(os.path.expanduser(text)))
    if scheme[1] == "file":
        return LocalPlace(urllib.parse.unquote(urllib.parse.urlsplit(text).path))
    try:
        filesystem, inner = pa.fs.FileSystem.from_uri(text)
    except (pa.ArrowException, ValueError):
        filesystem, inner = _fsspec(text)
    return RemotePlace(filesystem, inner, text)


def _fsspec(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise PipelineError(f"{url} can be opened neither by pyarrow.fs nor by fsspec: {error}") from error
    return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(filesystem)), path


class LocalPlace:
    """A directory of this machine, or one that is mounted on it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._reached: dict[str, _Directory] = {}
        """Directories to which the whole way is durable."""

    def __reduce__(self) -> tuple[type[LocalPlace], tuple[str]]:
        return LocalPlace, (self.root,)

    def exists(self) -> bool:
        return os.path.exists(self.root)

    def is_file(self) -> bool:
        return os.path.isfile(self.root)

    def files(self, below: str = "") -> list[str]:
        found = []
        for directory, _, names in os.walk(os.path.join(self.root, below) if below else self.root):
            relative = os.path.relpath(directory, self.root)
            found += [name if relative == "." else f"{relative}/{name}" for name in names]
        return found

    def stamps(self) -> dict[str, Stamp]:
        found = {name: self.stamp(name) for name in self.files()}
        return {name: stamp for name, stamp in found.items() if stamp is not None}

    def stamp(self, name: str) -> Stamp | None:
        try:
            status = os.stat(os.path.join(self.root, name))
        except FileNotFoundError:
            return None
        return Stamp(status.st_size, status.st_mtime_ns)

    def open(self, name: str) -> Any:
        return open(os.path.join(self.root, name), "rb")

    def create(self, name: str) -> Any:
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "wb")

    def close_durably(self, file: Any) -> None:
        with file:
            file.flush()
            os.fsync(file.fileno())
        self._sync_directory(os.path.dirname(file.name))

    def size(self, name: str) -> int | None:
        try:
            return os.stat(os.path.join(self.root, name)).st_size
        except FileNotFoundError:
            return None

    def publish(self, staged: str, final: str) -> None:
        target = os.path.join(self.root, final)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(os.path.join(self.root, staged), target)
        self._sync_directory(os.path.dirname(target))

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(self.root, name))

    def _sync_directory(self, path: str) -> None:
        """Make the entries of a directory durable, and the way to it."""
        directory = _Directory(path)
        directory.sync()
        known = self._reached.get(path)
        # While the one that was synced is open, no other directory can have its identity.
        if known is None or known.identity != directory.identity:
            self._sync_above(path)
            self._reached[path] = directory

    def _sync_above(self, path: str) -> None:
        while (above := os.path.dirname(path)) != path:
            path = above
            try:
                _Directory(path).sync()
            except PermissionError:
                # Above the output there may be directories that this user may pass and not read, like those of other
                # users. The user made nothing there.
                if path.startswith(self.root):
                    raise


class _Directory:
    """An open directory; closed when nobody refers to it any more."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        self.identity = status.st_dev, status.st_ino

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            # A file system that has no way of syncing a directory: there is nothing to wait for.
            if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
                raise


def _stamp_of(info: Any) -> Stamp:
    return Stamp(int(info.size or 0), int(info.mtime_ns or 0))


class RemotePlace:
    """A directory of any file system that pyarrow.fs or fsspec opens."""

    def __init__(self, filesystem: Any, root: str, url: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self.url = url

    def exists(self) -> bool:
        return bool(self._info(self._root).type != pa.fs.FileType.NotFound)

    def is_file(self) -> bool:
        return bool(self._info(self._root).type == pa.fs.FileType.File)

    def files(self, below: str = "") -> list[str]:
        return [self._relative(info.path) for info in self._infos(f"{self._root}/{below}" if below else self._root)]

    def _infos(self, directory: str) -> list[Any]:
        selector = pa.fs.FileSelector(directory, allow_not_found=True, recursive=True)
        return [info for info in self._filesystem.get_file_info(selector) if info.type == pa.fs.FileType.File]

    def _relative(self, path: str) -> str:
        # Some file systems answer with a slash in front, and some without.
        return path.lstrip("/").removeprefix(self._root.lstrip("/")).lstrip("/")

    def stamps(self) -> dict[str, Stamp]:
        return {self._relative(info.path): _stamp_of(info) for info in self._infos(self._root)}

    def stamp(self, name: str) -> Stamp | None:
        info = self._info(f"{self._root}/{name}")
        return _stamp_of(info) if info.type == pa.fs.FileType.File else None

    def open(self, name: str) -> Any:
        return self._filesystem.open_input_file(f"{self._root}/{name}")

    def create(self, name: str) -> Any:
        path = f"{self._root}/{name}"
        self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        return self._filesystem.open_output_stream(path)

    def close_durably(self, file: Any) -> None:
        file.close()

    def size(self, name: str) -> int | None:
        info = self._info(f"{self._root}/{name}")
        return int(info.size) if info.type == pa.fs.FileType.File else None

    def publish(self, staged: str, final: str) -> None:
        self._filesystem.move(f"{self._root}/{staged}", f"{self._root}/{final}")

    def remove(self, name: str) -> None:
        if self.size(name) is not None:
            self._filesystem.delete_file(f"{self._root}/{name}")

    def _info(self, path: str) -> Any:
        try:
            return self._filesystem.get_file_info(path)
        except (pa.ArrowException, OSError) as error:
            raise StorageError(f"{self.url} cannot be reached: {error}") from error
