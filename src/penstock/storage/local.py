"""A store in a directory: atomic and durable on any POSIX file system, shared ones included.

Nothing is ever written under its final name. A write goes to a temporary name in the same directory, is synced,
and then gets its name in one step: by `link`, which fails if the name is taken, or by `rename`, which replaces.
The directory is synced after that, and so are the directories above it up to the root: that another process has
made a directory does not mean that it has synced it yet. Which of them need no syncing any more, and why that is
known, is the matter of `storage.local_directories`.

Every call counts: the threads that make them compete with user code for the interpreter, and lose it with each. A
write into a directory that is open takes seven calls, two of them syncs.

A crash leaves at most a temporary file, which nobody lists. Every generation begins with a `sweep_temporary`
(`driver.checkpoints.pruning`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from penstock.errors import StorageError
from penstock.storage import paths
from penstock.storage.local_directories import GONE, OpenDirectories, OpenDirectory, sync_directory
from penstock.storage.port import TEMPORARY_AGE_S, Data, is_never_over

_VECTOR_MAX = min(os.sysconf("SC_IOV_MAX"), 1024) if "SC_IOV_MAX" in os.sysconf_names else 16
_CREATE_ATTEMPTS_MAX = 100
_CURES = {
    errno.ENOSPC: "The disk is full: free some space, or keep fewer checkpoints.",
    errno.EDQUOT: "The quota of this user is used up: free some space, or keep fewer checkpoints.",
    errno.EROFS: "The file system is read-only: choose another directory, or mount it for writing.",
    errno.EACCES: "Permission denied: give this user the right to write there, or choose another directory.",
    errno.EPERM: "The file system does not allow it: give this user the right, or choose another directory.",
    errno.EISDIR: "There is a directory where a file should be: move it away, or choose another place.",
    errno.ENOTDIR: "There is a file where a directory should be: move it away, or choose another place.",
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
        self._directories = OpenDirectories(self._real_root)

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    @property
    def url(self) -> str:
        """What opens the same store again, on another host too if the directory is shared."""
        return self.root.as_uri()

    def create(self, path: str, data: Data) -> bool:
        paths.require_valid(path)
        with _explained(path, "create"):
            return self._create(path, data)

    def write(self, path: str, parts: Sequence[Data]) -> None:
        paths.require_valid(path)
        above, _, name = path.rpartition("/")
        with _explained(path, "write"):
            directory, temporary = self._write_temporary(above, parts)
            with self._giving_up(directory, temporary):
                self._directories.refuse_link(directory, name)
                os.replace(self._directories.full(directory.path, temporary), name, dst_dir_fd=directory.descriptor)
            self._directories.sync([directory])

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        paths.require_valid(path)
        paths.require_range(path, offset, length)
        with _explained(path, "read"):
            descriptor = self._open_to_read(path)
            try:
                # Before anything is allocated: the length may come from a damaged manifest.
                size = _size_of_file(descriptor, path)
                end = size if length is None else offset + length
                if max(offset, end) > size:
                    raise paths.short_read(path, offset, length, size)
                content = _read_all(descriptor, offset, end)
            finally:
                os.close(descriptor)
        if len(content) != end - offset:
            raise paths.short_read(path, offset, length, offset + len(content))
        return content

    def list(self, prefix: str) -> list[str]:
        paths.require_valid_prefix(prefix)
        with _explained(prefix, "list"):
            return sorted(path for path, _ in self._walk("", prefix) if paths.is_valid(path))

    def delete(self, *doomed: str) -> None:
        for path in doomed:
            paths.require_valid(path)
        held: dict[str, OpenDirectory] = {}
        for path in doomed:
            with _explained(path, "delete"):
                above, _, name = path.rpartition("/")
                directory = held.get(above) or held.setdefault(above, self._directories.find_nearest(above))
                if directory.path == above:
                    self._unlink(directory, name)
        with _explained(", ".join(held) or str(self.root), "delete from"):
            self._sync_removals(held.values())

    def check_writable(self) -> None:
        """Go once through all that `create` needs, so that a directory that cannot do it is found out at the start."""
        probe = paths.temporary_name()
        with _explained(str(self.root), "write to"):
            self._create(probe, b"penstock")
            os.unlink(os.path.join(self._real_root, probe))

    def sweep_temporary(self, age_s: float = TEMPORARY_AGE_S, is_over: Callable[[str], bool] = is_never_over) -> int:
        removed = 0
        with _explained(str(self.root), "sweep"):
            for path, entry in self._walk("", ""):
                if paths.temporary_born_ms(entry.name) is None:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if is_over(path) or time.time() - entry.stat(follow_symlinks=False).st_mtime >= age_s:
                        os.unlink(entry.path)
                        removed += 1
                        self._directories.remove_empty(self._directories.find(path.rpartition("/")[0]))
        return removed

    def _create(self, path: str, data: Data) -> bool:
        above, _, name = path.rpartition("/")
        directory, temporary = self._write_temporary(above, [data])
        with self._giving_up(directory, temporary):
            created = self._link(directory, temporary, name)
            if not created:
                self._require_file(directory, name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory.descriptor)
        # Who is told that the file exists may act on it: it must not be gone after a power failure (I3).
        self._directories.sync([directory])
        return created

    def _write_temporary(self, above: str, parts: Sequence[Data]) -> tuple[OpenDirectory, str]:
        """All of `parts`, durable, under a temporary name: the directory in which it is, and the name."""
        directory, temporary, descriptor = self._open_temporary(above)
        with self._giving_up(directory, temporary):
            try:
                _write_all(descriptor, parts)
                # Not tried again where it fails: the kernel may report lost pages only once.
                _sync(descriptor)
            finally:
                os.close(descriptor)
        return directory, temporary

    def _open_temporary(self, above: str) -> tuple[OpenDirectory, str, int]:
        temporary = paths.temporary_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for _ in range(_CREATE_ATTEMPTS_MAX):
            # Whoever deletes the last file of a directory removes it, maybe just now. From here on our own
            # temporary file keeps it.
            try:
                directory = self._directories.reach(above)
                return directory, temporary, os.open(temporary, flags, 0o666, dir_fd=directory.descriptor)
            except OSError as error:
                if error.errno not in GONE:
                    raise
                self._directories.forget(above)
        raise StorageError(f"cannot write to {above!r}: another process keeps removing the directory.")

    @contextlib.contextmanager
    def _giving_up(self, directory: OpenDirectory, temporary: str) -> Iterator[None]:
        """Whatever fails leaves no temporary file behind, and no trust in what is known of the directory."""
        try:
            yield
        except BaseException:
            self._directories.forget(directory.path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory.descriptor)
            raise

    def _link(self, directory: OpenDirectory, temporary: str, name: str) -> bool:
        try:
            os.link(self._directories.full(directory.path, temporary), name, dst_dir_fd=directory.descriptor)
        except FileExistsError:
            # Over a network file system the first request may have succeeded and only its answer got lost.
            return os.stat(temporary, dir_fd=directory.descriptor).st_nlink > 1
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise StorageError(
                f"cannot create {self._directories.full(directory.path, name)!r}: {error.strerror}. The file system "
                "has no hard links, without which two drivers cannot be kept apart. Choose a directory on another one."
            ) from error
        return True

    def _require_file(self, directory: OpenDirectory, name: str) -> None:
        self._directories.refuse_link(directory, name)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.lstat(name, dir_fd=directory.descriptor).st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)

    def _open_to_read(self, path: str) -> int:
        above, _, name = path.rpartition("/")
        directory = self._directories.find(above)
        try:
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.descriptor)
        except OSError as error:
            if error.errno not in GONE:
                self._directories.refuse_link(directory, name)
            raise

    def _unlink(self, directory: OpenDirectory, name: str) -> None:
        self._directories.refuse_link(directory, name)
        try:
            os.unlink(name, dir_fd=directory.descriptor)
        except OSError as error:
            if error.errno not in GONE:
                raise

    def _sync_removals(self, directories: Iterable[OpenDirectory]) -> None:
        """Durable too: a manifest that came back after its blobs were deleted would name what is not there.

        Also where nothing was found to delete: whoever has deleted it may not have synced that yet.
        """
        # From the lowest up: one that becomes empty only by what is removed below it goes as well.
        lowest_first = sorted(directories, key=lambda directory: directory.path.count("/"), reverse=True)
        left = list(map(self._directories.remove_empty, lowest_first))
        while left:
            failure = self._try_to_sync(left)
            # Somebody else may have removed one meanwhile: then that must be durable, and not what was in it.
            gone = [each for each in left if each.parent is not None and not self._directories.is_in_place(each)]
            if failure is not None and not gone:
                raise failure
            unsynced = [each for each in left if each not in gone] if failure is not None else []
            left = unsynced + [each.parent for each in gone if each.parent is not None]

    def _try_to_sync(self, directories: Sequence[OpenDirectory]) -> OSError | None:
        try:
            self._directories.sync(directories)
        except OSError as error:
            if error.errno not in GONE:
                raise
            return error
        return None

    def _require_root(self) -> None:
        if not os.path.isdir(self._real_root):
            raise StorageError(f"the directory {self._real_root!r} is gone. Is its disk still mounted?")

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


def _size_of_file(descriptor: int, path: str) -> int:
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return status.st_size


def _read_all(descriptor: int, start: int, end: int) -> bytes:
    """The bytes of a file from `start` to `end`, or to the end of the file if that comes first."""
    found = []
    # The kernel gives at most two gigabytes at a time.
    while start < end and (content := os.pread(descriptor, end - start, start)):
        found.append(content)
        start += len(content)
    return found[0] if len(found) == 1 else b"".join(found)


def _make_root(root: Path) -> None:
    if root.is_dir():
        return
    if root.is_symlink():
        raise StorageError(f"{str(root)!r} is a dangling symbolic link. Is the disk that it leads to mounted?")
    _make_root(root.parent)
    with contextlib.suppress(FileExistsError):
        root.mkdir()
    descriptor = os.open(root.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_directory(descriptor)
    finally:
        os.close(descriptor)


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
