"""A store in a directory: atomic and durable on any POSIX file system, shared ones included.

Nothing is ever written under its final name. A write goes to a temporary name in the same directory, is synced,
and then gets its name in one step: by `link`, which fails if the name is taken, or by `rename`, which replaces.
The directory is synced after that, and so are the directories above it up to the root: that another process has
made a directory does not mean that it has synced it yet.

A crash leaves at most a temporary file, which nobody lists and `sweep_temporary` removes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.errors import StorageError
from penstock.storage import paths
from penstock.storage.port import Data

TEMPORARY_AGE_S = 3600.0
"""A temporary file that nobody has written to for so long was left by a crash."""

_VECTOR_MAX = min(os.sysconf("SC_IOV_MAX"), 1024) if "SC_IOV_MAX" in os.sysconf_names else 16
_CREATE_ATTEMPTS_MAX = 100
# What a file system answers that has no way of syncing a directory: there is nothing that we could wait for.
_CANNOT_SYNC_DIRECTORIES = {errno.EINVAL, errno.ENOTSUP}
_CURES = {
    errno.ENOSPC: "The disk is full: free some space, or keep fewer checkpoints.",
    errno.EDQUOT: "The quota of this user is used up: free some space, or keep fewer checkpoints.",
    errno.EROFS: "The file system is read-only: choose another directory, or mount it for writing.",
    errno.EACCES: "Permission denied: give this user the right to write there, or choose another directory.",
    errno.EPERM: "The file system does not allow it: give this user the right, or choose another directory.",
    errno.EISDIR: "A directory is in the place of a file: move it away, or choose another root.",
    errno.ENOTDIR: "A file is in the place of a directory: move it away, or choose another root.",
    errno.ENAMETOOLONG: "The path is too long for this file system: choose a shorter root.",
    errno.EIO: "The disk reports an error: look at the system's log before you trust this disk again.",
    errno.ESTALE: "The server of this file system forgot the directory: mount it again.",
    errno.EMFILE: "This process has too many open files: raise its limit (ulimit -n).",
}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


class LocalStore:
    """A directory as a store. Any number of threads, processes and hosts may use it at once.

    An error out of `create` or `write` leaves open whether the file is there: the disk may have failed after the
    file got its name. What is there is complete in either case.
    """

    def __init__(self, root: str | os.PathLike[str], *, create_root: bool = True) -> None:
        """`create_root=False` for those who only look: a root that is not there is then an error at once."""
        self.root = Path(os.path.abspath(root))
        with _explained(str(self.root), "open"):
            if create_root:
                _make_root(self.root)
            elif not self.root.exists():
                raise StorageError(f"there is no directory {str(self.root)!r}. Is its disk mounted?")
            if not self.root.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.root))
        # The root itself may be a link; below it none may lead out.
        self._real_root = os.path.realpath(self.root)

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    @property
    def url(self) -> str:
        """What opens the same store again, on another host too if the directory is shared."""
        return self.root.as_uri()

    def create(self, path: str, data: Data) -> bool:
        target = self._locate(path)
        with _explained(path, "create"):
            created = not os.path.lexists(target) and self._publish(target, [data], _link)
            if not created:
                if os.path.isdir(target):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
                # Who is told that the file exists may act on it: it must not be gone after a power failure (I3).
                self._sync_up_from(os.path.dirname(target))
            return created

    def write(self, path: str, parts: Sequence[Data]) -> None:
        target = self._locate(path)
        with _explained(path, "write"):
            self._publish(target, parts, _rename)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        target = self._locate(path)
        paths.require_range(path, offset, length)
        with _explained(path, "read"), open(target, "rb") as file:
            # Before anything is allocated: the length may come from a damaged manifest.
            size = os.fstat(file.fileno()).st_size
            end = size if length is None else offset + length
            if max(offset, end) > size:
                raise paths.short_read(path, offset, length, size)
            file.seek(offset)
            content = file.read(end - offset)
        if len(content) != end - offset:
            raise paths.short_read(path, offset, length, offset + len(content))
        return content

    def list(self, prefix: str) -> list[str]:
        paths.require_valid_prefix(prefix)
        with _explained(prefix, "list"):
            return sorted(path for path, _ in self._walk("", prefix) if paths.is_valid(path))

    def delete(self, path: str) -> None:
        target = self._locate(path)
        with _explained(path, "delete"):
            try:
                os.unlink(target)
            except FileNotFoundError:
                self._require_root()
            # Durable too: a manifest that came back after its blobs were deleted would name what is not there.
            self._sync_up_from(self._remove_empty(os.path.dirname(target)))

    def check_writable(self) -> None:
        """Go once through all that `create` needs, so that a directory that cannot do it is found out at the start."""
        target = os.path.join(self._real_root, paths.temporary_name())
        with _explained(str(self.root), "write to"):
            self._publish(target, [b"penstock"], _link)
            os.unlink(target)

    def sweep_temporary(self, age_s: float = TEMPORARY_AGE_S) -> int:
        """Remove what crashed writes have left and nobody has written to for `age_s`; how many files that were.

        The trap: with too small an age it takes the file of a write that is still going on, which then fails.
        """
        removed = 0
        with _explained(str(self.root), "sweep"):
            for path, entry in self._walk("", ""):
                if paths.temporary_born_ms(entry.name) is None:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime >= age_s:
                        os.unlink(entry.path)
                        removed += 1
                        self._remove_empty(os.path.dirname(os.path.join(self._real_root, path)))
        return removed

    def _locate(self, path: str) -> str:
        paths.require_valid(path)
        target = os.path.join(self._real_root, path)
        real = os.path.realpath(target)
        if not real.startswith(self._real_root.rstrip("/") + "/"):
            raise StorageError(f"refused path {path!r}: a symbolic link leads out of {self._real_root!r}, to {real!r}.")
        return target

    def _publish(self, target: str, parts: Sequence[Data], publish: Callable[[str, str], bool]) -> bool:
        directory = os.path.dirname(target)
        temporary, descriptor = self._open_temporary(directory)
        try:
            try:
                _write_all(descriptor, parts)
                # Not tried again where it fails: the kernel may report lost pages only once.
                _sync(descriptor)
            finally:
                os.close(descriptor)
            published = publish(temporary, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        if published:
            self._sync_up_from(directory)
        return published

    def _open_temporary(self, directory: str) -> tuple[str, int]:
        temporary = os.path.join(directory, paths.temporary_name())
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for _ in range(_CREATE_ATTEMPTS_MAX):
            self._make_directory(directory)
            # Whoever deletes the last file of a directory removes it, maybe just now. From here on our own
            # temporary file keeps it.
            with contextlib.suppress(FileNotFoundError):
                return temporary, os.open(temporary, flags, 0o666)
        raise StorageError(f"cannot write to {directory!r}: somebody removes the directory again and again.")

    def _make_directory(self, directory: str) -> None:
        if os.path.isdir(directory):
            return
        self._require_root()
        missing = self._real_root
        for name in os.path.relpath(directory, self._real_root).split("/"):
            missing = os.path.join(missing, name)
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.mkdir(missing)

    def _require_root(self) -> None:
        # Making it again would turn an unmounted disk into an empty store (I8).
        if not os.path.isdir(self._real_root):
            raise StorageError(f"the directory {self._real_root!r} is gone. Is its disk still mounted?")

    def _sync_up_from(self, directory: str) -> None:
        while True:
            # A directory that is gone held nothing of ours: a file that we wrote was deleted since.
            with contextlib.suppress(FileNotFoundError):
                _sync_directory(directory)
            if directory == self._real_root:
                return
            directory = os.path.dirname(directory)

    def _remove_empty(self, directory: str) -> str:
        """Remove `directory` if it is empty, and so on upwards. Returns the first one that stays."""
        while directory != self._real_root:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY}:
                    raise
                break
            directory = os.path.dirname(directory)
        return directory

    def _walk(self, directory: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Every file whose path starts with `prefix`, unfinished ones included."""
        try:
            with os.scandir(os.path.join(self._real_root, directory)) as entries:
                found = list(entries)
        except (FileNotFoundError, NotADirectoryError):
            # Deleted since its parent was read. That the root is gone is another matter.
            self._require_root()
            return
        for entry in found:
            path = directory + entry.name
            if entry.is_dir(follow_symlinks=False):
                below = path + "/"
                if below.startswith(prefix) or prefix.startswith(below):
                    yield from self._walk(below, prefix)
            elif path.startswith(prefix) and entry.is_file(follow_symlinks=False):
                yield path, entry


def _link(temporary: str, target: str) -> bool:
    try:
        os.link(temporary, target)
    except FileExistsError:
        # Over a network file system the first request may have succeeded and only its answer got lost.
        return os.stat(temporary).st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise StorageError(
            f"cannot create {target!r}: {error.strerror}. The file system has no hard links, without which two drivers "
            "cannot be kept apart. Choose a directory on another one."
        ) from error
    return True


def _rename(temporary: str, target: str) -> bool:
    os.replace(temporary, target)
    return True


def _write_all(descriptor: int, parts: Sequence[Data]) -> None:
    """Write `parts` one after the other, without ever joining them."""
    # A view of zero bytes cannot always be cast, and nothing is lost without it.
    views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
    first = 0
    while first < len(views):
        written = os.writev(descriptor, views[first : first + _VECTOR_MAX])
        while first < len(views) and written >= len(views[first]):
            written -= len(views[first])
            first += 1
        if written:
            views[first] = views[first][written:]


def _sync(descriptor: int) -> None:
    try:
        import fcntl

        full_sync: int = fcntl.F_FULLFSYNC  # type: ignore[attr-defined, unused-ignore]
    except (ImportError, AttributeError):
        os.fsync(descriptor)
    else:
        # On macOS fsync does not reach through the cache of the drive.
        fcntl.fcntl(descriptor, full_sync)


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_DIRECTORIES:
            raise
    finally:
        os.close(descriptor)


def _make_root(root: Path) -> None:
    if root.is_dir():
        return
    if root.is_symlink():
        raise StorageError(f"{str(root)!r} is a symbolic link to nothing. Is the disk that it leads to mounted?")
    _make_root(root.parent)
    with contextlib.suppress(FileExistsError):
        root.mkdir()
    _sync_directory(str(root.parent))


@contextlib.contextmanager
def _explained(path: str, action: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise StorageError(f"cannot {action} {path!r}: there is no {error.filename!r}.") from error
    except OSError as error:
        cure = _CURES.get(error.errno or 0, "Look at the directory and its file system.")
        where = f" ({error.filename})" if error.filename else ""
        raise StorageError(f"cannot {action} {path!r}: {error.strerror or error}{where}. {cure}") from error
