"""A store on any URL that fsspec or pyarrow.fs opens: buckets, HDFS, SFTP and so on.

Two things differ from one file system to the next, and getting either wrong would lose data in silence:

- **Create if absent.** Buckets of Amazon, Google and Azure have a conditional put, and their fsspec
  implementations use it for `pipe_file(mode="create")`. The base class of fsspec offers the same argument and
  looks first and writes then, which two drivers can do at once. So support is not asked for, it is known by
  name, looked up in the signature of the installed version, and tried out when the store is opened: some servers
  that speak S3 ignore the condition. Without it the store refuses to open, unless the user vouches that there is
  never more than one driver (`single_driver`).
- **All or nothing.** A put to a bucket is; a write to a file system of directories is not, so there it goes to a
  temporary name first and is renamed.

fsspec caches listings, and the `find` of its base class takes an error for an empty directory. Neither may happen here
(I8). The buckets' own `find` raises, and lists all that begins with a prefix in one request for every thousand files,
where a walk asks once for each directory, of which every checkpoint has two.
"""

from __future__ import annotations

import contextlib
import enum
import inspect
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.arrow import ArrowFSWrapper

from penstock.errors import OptionError, StorageError
from penstock.storage import paths
from penstock.storage.port import TEMPORARY_AGE_S, Data, is_never_over

SINGLE_PUT_BYTES_MAX = 8 * 2**20
"""Up to here the parts are joined and sent in one request; above, in blocks of this size."""

# The packages whose `pipe_file` hands the condition to the server, all since their version 2024.12. `open(mode="xb")`
# is not used: for small files, s3fs took it for an ordinary write long after that.
_CONDITIONAL_PUT = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
}
_ATOMIC_PUT = {*_CONDITIONAL_PUT, "memory"}
_CONFLICT_ATTEMPTS_MAX = 5
_DELETES_AT_ONCE_MAX = 8


class _PathLock:
    """Held while a file is created. Each file has its own: an upload that hangs holds up no other file."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


# Two stores of one process may share a place, so the locks are not the store's own. A lock is gone when nobody uses it.
_PATH_LOCKS: weakref.WeakValueDictionary[str, _PathLock] = weakref.WeakValueDictionary()
_PATH_LOCKS_LOCK = threading.Lock()


def _lock_of(full: str) -> _PathLock:
    with _PATH_LOCKS_LOCK:
        found = _PATH_LOCKS.get(full)
        if found is None:
            found = _PATH_LOCKS[full] = _PathLock()
        return found


class Exclusion(enum.Enum):
    """What keeps two callers of `create` apart."""

    CONDITIONAL_PUT = "conditional put"
    """The server does, whoever calls."""
    SAME_PROCESS = "same process"
    """A lock does: the place exists in this process only."""
    SINGLE_DRIVER = "single driver"
    """The user has promised that there is only one process that creates; its threads are kept apart by a lock."""
    NONE = "none"
    """Nothing does, so `create` is refused."""


class ObjectStore:
    """A bucket or remote directory as a store.

    The trap: `create` may say False about our own file, when its reply was lost and the request sent again. Who
    must know reads the file and compares. An error leaves open whether the file is there, as with every store.
    """

    def __init__(
        self, url: str, *, single_driver: bool = False, storage_options: Mapping[str, object] | None = None
    ) -> None:
        """Connect to `url`. `storage_options` go to fsspec: endpoint, credentials and the like."""
        self.url = url + ("?single_driver=1" if single_driver else "")
        """What opens the same store again, on any host. May hold a password: not for messages."""
        self._shown = _without_password(url)
        self._protocol = url.split("://", 1)[0]
        self._fs, self._root = _connect(url, self._protocol, storage_options or {})
        # Arrow's stream to a bucket cannot be given up: when it is dropped it publishes what it has.
        self._is_atomic = self._protocol in _ATOMIC_PUT and not isinstance(self._fs, ArrowFSWrapper)
        self.exclusion = _exclusion(self._fs, self._protocol, single_driver)
        self._lists_flat = self._protocol in _CONDITIONAL_PUT and _has_flat_listing(self._fs)

    def __repr__(self) -> str:
        return f"ObjectStore({self._shown!r})"

    def create(self, path: str, data: Data) -> bool:
        paths.require_valid(path)
        self._require_exclusion()
        with self._explained(path, "create"):
            return self._create(self._full(path), bytes(data))

    def write(self, path: str, parts: Sequence[Data]) -> None:
        paths.require_valid(path)
        with self._explained(path, "write"):
            self._write(self._full(path), parts)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        paths.require_valid(path)
        paths.require_range(path, offset, length)
        full = self._full(path)
        with self._explained(path, "read"):
            if offset == 0 and length is None:
                return bytes(self._fs.cat_file(full))
            # Servers disagree about ranges that are empty or end behind the end; a length from a damaged manifest
            # must not be allocated either.
            size = int(self._fs.info(full)["size"])
            end = size if length is None else offset + length
            if max(offset, end) > size:
                raise paths.short_read(path, offset, length, size)
            content = bytes(self._fs.cat_file(full, start=offset, end=end)) if end > offset else b""
        if len(content) != end - offset:
            raise paths.short_read(path, offset, length, offset + len(content))
        return content

    def list(self, prefix: str) -> list[str]:
        paths.require_valid_prefix(prefix)
        with self._explained(prefix, "list"):
            return sorted({path for path in self._all(prefix) if paths.is_valid(path)})

    def delete(self, *doomed: str) -> None:
        for path in doomed:
            paths.require_valid(path)
        if len(doomed) < 2 or not self._fs.async_impl:
            for path in doomed:
                self._delete_explained(path)
            return
        # Not in one request, which buckets have and fsspec offers: s3fs does not say which of the files it could not
        # delete, and a manifest that is still there must not be taken for one that is gone (I3).
        with ThreadPoolExecutor(min(len(doomed), _DELETES_AT_ONCE_MAX)) as pool:
            list(pool.map(self._delete_explained, doomed))

    def check_writable(self) -> None:
        """Try out on a file of no meaning that files can be created, and only once."""
        self._require_exclusion()
        probe = self._full(paths.temporary_name())
        with self._explained(self._shown, "write to"):
            if not self._is_atomic:
                self._fs.makedirs(self._root, exist_ok=True)
            first, second = self._create(probe, b"first"), self._create(probe, b"second")
            kept = bytes(self._fs.cat_file(probe))
            self._delete(probe)
        if (first, second, kept) != (True, False, b"first"):
            raise StorageError(
                f"{self._shown} does not honour the condition of a conditional put: a file was created twice, so two "
                "drivers could not be kept apart. Use a server that does (for S3: If-None-Match), or, if there is "
                "never more than one driver, say so with single_driver=1."
            )

    def sweep_temporary(self, age_s: float = TEMPORARY_AGE_S, is_over: Callable[[str], bool] = is_never_over) -> int:
        """As the port says. The age is told by the clock of the host that wrote; a slow write must be done within it.

        Directories stay: not every file system refuses to remove one that is not empty. A bucket has none, but keeps
        the parts of an upload that was killed; a lifecycle rule of the bucket removes those.
        """
        removed = 0
        with self._explained(self._shown, "sweep"):
            for path in list(self._all("")):
                born_ms = paths.temporary_born_ms(path.rsplit("/", 1)[-1])
                if born_ms is not None and (is_over(path) or time.time() - born_ms / 1000 >= age_s):
                    self._delete(self._full(path))
                    removed += 1
        return removed

    def _require_exclusion(self) -> None:
        if self.exclusion is not Exclusion.NONE:
            return
        package = _CONDITIONAL_PUT.get(self._protocol)
        cure = f"Install {package} 2024.12 or later, or, if" if package else "If"
        raise StorageError(
            f"{self._shown}: {type(self._fs).__name__} cannot create a file only if it is absent, so two drivers could "
            f"not be kept apart. {cure} there is never more than one driver on this directory, say so with "
            "single_driver=1 at the end of the URL (after a question mark)."
        )

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _create(self, full: str, data: bytes) -> bool:
        if self.exclusion is Exclusion.CONDITIONAL_PUT:
            return self._put_if_absent(full, data)
        own = _lock_of(full)
        with own.lock:
            if self._exists(full):
                return False
            self._write(full, [data])
            return True

    def _put_if_absent(self, full: str, data: bytes) -> bool:
        for attempt in range(1, _CONFLICT_ATTEMPTS_MAX + 1):
            try:
                self._fs.pipe_file(full, data, mode="create")
            except Exception as error:
                if _says_exists(error):
                    return False
                # Another request for the same name was under way; who won is known when this one is sent again.
                if attempt == _CONFLICT_ATTEMPTS_MAX or not _says_conflict(error):
                    raise
                time.sleep(0.05 * attempt)
            else:
                return True
        raise AssertionError("the last attempt returns or raises")

    def _write(self, full: str, parts: Sequence[Data]) -> None:
        if self._is_atomic:
            self._put(full, parts)
            return
        parent = full.rsplit("/", 1)[0]
        temporary = f"{parent}/{paths.temporary_name()}"
        self._fs.makedirs(parent, exist_ok=True)
        try:
            self._put(temporary, parts)
            self._fs.mv(temporary, full)
        except BaseException:
            with contextlib.suppress(Exception):
                self._delete(temporary)
            raise
        if self._exists(temporary):
            # WebHDFS answers a rename onto an existing file with a polite "false", which fsspec does not read.
            self._delete(temporary)
            raise StorageError(f"{self._shown}: {type(self._fs).__name__} did not rename a file to {full!r}")

    def _put(self, full: str, parts: Sequence[Data]) -> None:
        total_bytes = sum(memoryview(part).nbytes for part in parts)
        # fsspec shows a file in memory from the moment that it is opened.
        if total_bytes <= SINGLE_PUT_BYTES_MAX or self._protocol == "memory":
            self._fs.pipe_file(full, b"".join(parts))
            return
        file = self._fs.open(full, "wb", block_size=SINGLE_PUT_BYTES_MAX)
        try:
            for part in parts:
                _write_in_blocks(file, part)
            file.close()
        except BaseException:
            _abandon(file)
            raise

    def _exists(self, full: str) -> bool:
        # Not fsspec's own `exists`: to that, every error means that there is nothing, which we would then replace.
        try:
            self._fs.info(full)
        except FileNotFoundError:
            return False
        return True

    def _delete_explained(self, path: str) -> None:
        with self._explained(path, "delete"):
            self._delete(self._full(path))

    def _delete(self, full: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(full)

    def _all(self, prefix: str) -> Iterator[str]:
        """Every file whose path starts with `prefix`, unfinished ones included."""
        return self._find(prefix) if self._lists_flat else self._walk("", prefix)

    def _find(self, prefix: str) -> Iterator[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(f"{self._root}/{prefix.rpartition('/')[0]}".rstrip("/"))
        except FileNotFoundError:
            # In a bucket, a directory in which there is nothing does not exist.
            return
        for name in found:
            path = str(name).removeprefix(f"{self._root}/")
            if path != name and path.startswith(prefix):
                yield path

    def _walk(self, directory: str, prefix: str) -> Iterator[str]:
        """Every file whose path starts with `prefix`, unfinished ones included. From the root down: an error is one."""
        here = f"{self._root}/{directory}".rstrip("/")
        for entry in self._entries(here, is_root=not directory):
            name = str(entry["name"]).rstrip("/")
            # Some stores keep an empty object for the directory itself.
            if not name.startswith(here + "/"):
                continue
            path = directory + name[len(here) + 1 :]
            if entry["type"] == "directory":
                below = path + "/"
                if below.startswith(prefix) or prefix.startswith(below):
                    yield from self._walk(below, prefix)
            elif path.startswith(prefix):
                yield path

    def _entries(self, full: str, is_root: bool) -> Sequence[dict[str, Any]]:
        self._fs.invalidate_cache()
        try:
            return list(self._fs.ls(full, detail=True))
        except FileNotFoundError:
            # In a bucket, a directory in which there is nothing does not exist. Elsewhere a root that is gone is
            # an error: it must not be taken for a place without checkpoints (I8).
            if is_root and not self._is_atomic:
                raise
            return []

    @contextlib.contextmanager
    def _explained(self, path: str, action: str) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except FileNotFoundError as error:
            raise StorageError(
                f"cannot {action} {path!r} in {self._shown}: there is no such file or bucket."
            ) from error
        except PermissionError as error:
            cure = "Check the credentials and what they allow."
            raise StorageError(f"cannot {action} {path!r} in {self._shown}: permission denied. {cure}") from error
        except Exception as error:
            # Each implementation has its own errors, and not all of them are OSErrors.
            raise StorageError(f"cannot {action} {path!r} in {self._shown}: {_said(error)}") from error


_HDFS = (
    ". HDFS is opened by pyarrow, which needs Java and libhdfs: set JAVA_HOME, HADOOP_HOME, and CLASSPATH to the "
    "output of `hadoop classpath --glob`, for the driver and the executors"
)


def _connect(url: str, protocol: str, storage_options: Mapping[str, object]) -> tuple[Any, str]:
    shown = _without_password(url)
    # Those that have a cache of listings know the option; others would hand it on to their servers.
    uncached = {"use_listings_cache": False} if protocol in _CONDITIONAL_PUT else {}
    try:
        fs, root = fsspec.core.url_to_fs(url, **{**uncached, **storage_options})
    except ImportError as error:
        fs, root = _connect_with_arrow(url, error, storage_options)
    except ValueError as error:
        raise OptionError(f"{shown!r} is not a URL that fsspec can open: {_said(error)}") from error
    except Exception as error:
        cure = _HDFS if protocol in ("hdfs", "viewfs") else ""
        raise StorageError(f"cannot open {shown}: {_said(error)}{cure}") from error
    if protocol in _CONDITIONAL_PUT and not root.strip("/"):
        raise OptionError(f"{shown!r} names no bucket. Write it as {protocol}://bucket/directory.")
    return fs, root.rstrip("/")


def _connect_with_arrow(url: str, missing: ImportError, storage_options: Mapping[str, object]) -> tuple[Any, str]:
    """The way without fsspec's own package for the protocol, which leaves conditional puts out."""
    from pyarrow.fs import FileSystem

    shown = _without_password(url)
    if storage_options:
        raise OptionError(f"storage options for {shown} need fsspec's own package: {missing}") from missing
    try:
        fs, root = FileSystem.from_uri(url)
    except Exception as error:
        raise StorageError(f"cannot open {shown}: {missing}; and pyarrow: {_said(error)}") from error
    return ArrowFSWrapper(fs), root


def _exclusion(fs: Any, protocol: str, single_driver: bool) -> Exclusion:
    if protocol == "memory":
        return Exclusion.SAME_PROCESS
    if single_driver:
        # Their word comes first: a server may accept the condition and ignore it.
        return Exclusion.SINGLE_DRIVER
    if protocol in _CONDITIONAL_PUT and _has_conditional_put(fs):
        return Exclusion.CONDITIONAL_PUT
    return Exclusion.NONE


def _has_conditional_put(fs: Any) -> bool:
    """Whether the installed version has its own `pipe_file` that knows the mode: older ones swallow it.

    adlfs takes it out of its `**kwargs` since 2026, where no signature shows it: there its code names the mode.
    """
    own = getattr(type(fs), "_pipe_file", None)
    if own is None or own is getattr(AsyncFileSystem, "_pipe_file", None):
        return False
    named = getattr(getattr(own, "__code__", None), "co_consts", ())
    return "mode" in inspect.signature(own).parameters or {"mode", "create"} <= {*named}


def _has_flat_listing(fs: Any) -> bool:
    """Whether the installed version has its own `find`, which is one listing without directories."""
    return getattr(type(fs), "_find", AsyncFileSystem._find) is not AsyncFileSystem._find


def _says_exists(error: BaseException) -> bool:
    return any(
        isinstance(cause, FileExistsError)
        or _code(cause) in {"PreconditionFailed", "412", "BlobAlreadyExists", "conditionNotMet"}
        for cause in _causes(error)
    )


def _says_conflict(error: BaseException) -> bool:
    return any(_code(cause) in {"ConditionalRequestConflict", "OperationAborted"} for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _code(error: BaseException) -> str:
    """The code that the server gave: botocore keeps it in a response, Azure in `error_code`, gcsfs in `code`."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    for name in ("error_code", "code"):
        if (code := getattr(error, name, None)) is not None:
            return str(getattr(code, "value", code))
    return ""


def _write_in_blocks(file: Any, part: Data) -> None:
    # fsspec copies what it is given into its buffer before it sends any of it: a large part must come in pieces.
    view = memoryview(part).cast("B") if memoryview(part).nbytes else memoryview(b"")
    for start in range(0, len(view), SINGLE_PUT_BYTES_MAX):
        file.write(view[start : start + SINGLE_PUT_BYTES_MAX])


def _abandon(file: Any) -> None:
    """Drop an unfinished upload. Closing it, or leaving that to the garbage collector, would publish half a file."""
    with contextlib.suppress(Exception):
        file.discard()
    with contextlib.suppress(Exception):
        file.closed = True


def _without_password(text: str) -> str:
    return re.sub(r"(://[^/@:\s]*):[^/@\s]*@", r"\1:***@", text)


def _said(error: BaseException) -> str:
    """What an error says, fit for a message: libhdfs says a hundred lines, and others the whole URL."""
    first_line = next(iter(str(error).splitlines()), "")[:300]
    return _without_password(f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__)
