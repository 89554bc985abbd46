"""What buckets and other file systems add to the contract: never unsafe in silence, never half a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.fs
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry, get_filesystem_class, known_implementations, register_implementation
from fsspec.spec import AbstractBufferedFile

from penstock.errors import OptionError, StorageError
from penstock.storage import Data, object_store, paths
from penstock.storage.object_store import Exclusion, ObjectStore


class ServerError(Exception):
    """An error as botocore raises it: the code is in the response."""

    def __init__(self, code: str) -> None:
        super().__init__(f"the server says {code}")
        self.response = {"Error": {"Code": code}}


class Upload(AbstractBufferedFile):  # type: ignore[misc]
    """An upload in blocks, as to a bucket: closing it publishes what has arrived so far."""

    def write(self, data: memoryview) -> int:
        self.fs.largest_bytes = max(self.fs.largest_bytes, len(data))
        return int(super().write(data))

    def _initiate_upload(self) -> None:
        self.blocks: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        self.fs.block_count += 1
        if self.fs.block_count == self.fs.fails_at_block:
            raise ServerError("SlowDown")
        self.blocks.append(self.buffer.getvalue())
        if final:
            self.fs.pipe_file(self.path, b"".join(self.blocks))
        return True


class Bucket(MemoryFileSystem):  # type: ignore[misc]
    """A bucket of Amazon's, with the conditional put."""

    protocol = "s3"
    root_marker = ""
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    answers: ClassVar[list[Exception]] = []
    """What the next conditional puts are answered with instead of being done."""
    block_count = 0
    largest_bytes = 0
    fails_at_block = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("s3://")))

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        self.pipe_file(path, value, mode)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        if mode == "create":
            if self.answers:
                raise self.answers.pop(0)
            if self.exists(path):
                raise OSError(22, "At least one of the pre-conditions did not hold") from ServerError(
                    "PreconditionFailed"
                )
        super().pipe_file(path, value)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **kwargs: Any) -> Any:
        if mode == "wb" and "data" not in kwargs:
            return Upload(self, path, mode, block_size)
        return super()._open(path, mode, block_size, **kwargs)


class DeafBucket(Bucket):
    """A server that speaks S3 but does not know the condition: it says yes to everything."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        super().pipe_file(path, value)


class OldBucket(Bucket):
    """A version from before the condition, which takes any argument and ignores it."""

    async def _pipe_file(self, path: str, value: bytes, **kwargs: object) -> None:  # type: ignore[override]
        self.pipe_file(path, value)


@pytest.fixture
def serve() -> Iterator[Callable[[type[Bucket]], None]]:
    """Let s3:// lead to one of the buckets above."""
    known = dict(_registry)

    def register(bucket: type[Bucket]) -> None:
        register_implementation("s3", bucket, clobber=True)

    yield register
    _registry.clear()
    _registry.update(known)
    Bucket.store.clear()
    Bucket.answers.clear()


def test_a_bucket_with_conditional_put_is_safe_for_many_drivers(serve: Callable[[type[Bucket]], None]) -> None:
    serve(Bucket)
    store = ObjectStore("s3://bucket/directory")
    store.check_writable()
    assert store.exclusion is Exclusion.CONDITIONAL_PUT
    assert store.create("a/b", b"first")
    assert not ObjectStore("s3://bucket/directory").create("a/b", b"second")
    assert store.read("a/b") == b"first"
    assert store.list("") == ["a/b"]


def test_a_server_that_ignores_the_condition_is_refused_when_the_store_is_checked(
    serve: Callable[[type[Bucket]], None],
) -> None:
    serve(DeafBucket)
    store = ObjectStore("s3://bucket/directory")
    with pytest.raises(StorageError, match=r"does not honour the condition.*single_driver=1"):
        store.check_writable()
    assert Bucket.store == {}


def test_a_version_without_conditional_put_is_refused_with_what_to_install(
    serve: Callable[[type[Bucket]], None],
) -> None:
    serve(OldBucket)
    store = ObjectStore("s3://bucket/directory")
    with pytest.raises(StorageError, match=r"Install s3fs 2024.12.*single_driver=1"):
        store.check_writable()
    with pytest.raises(StorageError, match=r"Install s3fs 2024.12.*single_driver=1"):
        store.create("a", b"x")
    assert Bucket.store == {}


@pytest.mark.parametrize(("protocol", "package"), [("s3", "s3fs"), ("gs", "gcsfs"), ("abfs", "adlfs")])
def test_the_installed_client_of_each_cloud_is_known_to_have_a_conditional_put(protocol: str, package: str) -> None:
    """adlfs takes the mode out of its keyword arguments, and was refused as too old."""
    pytest.importorskip(package)
    kind = get_filesystem_class(protocol)
    assert object_store._has_conditional_put(object.__new__(kind))


@pytest.mark.parametrize("bucket", [DeafBucket, OldBucket])
def test_with_the_promise_of_a_single_driver_any_bucket_will_do(
    serve: Callable[[type[Bucket]], None], bucket: type[Bucket]
) -> None:
    serve(bucket)
    store = ObjectStore("s3://bucket/directory", single_driver=True)
    store.check_writable()
    assert store.create("a/b", b"first")
    assert not store.create("a/b", b"second")
    assert store.read("a/b") == b"first"


def test_a_directory_behind_fsspec_is_refused_without_that_promise(tmp_path: Path) -> None:
    store = ObjectStore(f"local://{tmp_path}")
    with pytest.raises(StorageError, match=r"LocalFileSystem cannot create.*If there is never more than one driver"):
        store.check_writable()
    with pytest.raises(StorageError, match="two drivers could not be kept apart"):
        store.create("a", b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_conflict_with_a_request_under_way_is_tried_again(
    serve: Callable[[type[Bucket]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    serve(Bucket)
    store = ObjectStore("s3://bucket/directory")
    Bucket.answers.extend([ServerError("ConditionalRequestConflict")] * 2)
    assert store.create("a", b"x")
    Bucket.answers.extend([ServerError("ConditionalRequestConflict")] * 100)
    with pytest.raises(StorageError, match="ConditionalRequestConflict"):
        store.create("b", b"x")
    assert 90 < len(Bucket.answers) < 100


class GoogleError(Exception):
    code = 412


class AzureError(Exception):
    error_code = "BlobAlreadyExists"


@pytest.mark.parametrize(
    "answer", [FileExistsError(), ServerError("PreconditionFailed"), ServerError("412"), GoogleError(), AzureError()]
)
def test_every_dialect_of_already_there_means_false(serve: Callable[[type[Bucket]], None], answer: Exception) -> None:
    serve(Bucket)
    Bucket.answers.append(answer)
    assert not ObjectStore("s3://bucket/directory").create("a", b"x")


@pytest.mark.parametrize("answer", [ServerError("InternalError"), PermissionError("no"), TimeoutError()])
def test_any_other_answer_is_an_error_and_not_false(serve: Callable[[type[Bucket]], None], answer: Exception) -> None:
    serve(Bucket)
    Bucket.answers.append(answer)
    with pytest.raises(StorageError, match=r"create 'a' in s3://bucket/directory") as raised:
        ObjectStore("s3://bucket/directory").create("a", b"x")
    assert raised.value.__cause__ is answer


def test_a_large_blob_goes_up_in_blocks_and_arrives_whole(
    serve: Callable[[type[Bucket]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "SINGLE_PUT_BYTES_MAX", 100)
    serve(Bucket)
    store = ObjectStore("s3://bucket/directory")
    parts: list[Data] = [b"a" * 250, b"", b"b" * 30, memoryview(b"c" * 99)]
    store.write("a/b", parts)
    assert store.read("a/b") == b"".join(parts)
    assert store._fs.block_count >= 3
    # fsspec buffers all that it is handed at a time.
    assert store._fs.largest_bytes == 100


@pytest.mark.parametrize("block", [1, 2, 3])
def test_an_upload_that_fails_half_way_publishes_nothing(
    serve: Callable[[type[Bucket]], None], monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(object_store, "SINGLE_PUT_BYTES_MAX", 100)
    serve(Bucket)
    store = ObjectStore("s3://bucket/directory")
    store.write("a/b", [b"before"])
    monkeypatch.setattr(Bucket, "fails_at_block", block)
    with pytest.raises(StorageError, match="SlowDown"):
        store.write("a/b", [b"x" * 250, b"y" * 100])
    assert store.list("") == ["a/b"]
    assert store.read("a/b") == b"before"


def test_a_write_to_directories_that_fails_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(f"local://{tmp_path}", single_driver=True)
    store.write("a/b", [b"before"])

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(StorageError, match="No space left"):
        patched.setattr(LocalFileSystem, "mv", refuse)
        store.write("a/b", [b"after"])
    assert store.read("a/b") == b"before"
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["b"]


def test_a_rename_that_did_not_happen_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore(f"local://{tmp_path}", single_driver=True)
    monkeypatch.setattr(LocalFileSystem, "mv", lambda *_, **__: None)
    with pytest.raises(StorageError, match="did not rename"):
        store.write("a/b", [b"x"])
    assert list((tmp_path / "a").iterdir()) == []


def test_a_file_that_cannot_be_looked_at_is_not_taken_for_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(f"local://{tmp_path}", single_driver=True)
    assert store.create("a", b"first")

    def fail(*_: object, **__: object) -> None:
        raise TimeoutError("the server did not answer")

    with monkeypatch.context() as patched, pytest.raises(StorageError, match="did not answer"):
        patched.setattr(LocalFileSystem, "info", fail)
        store.create("a", b"second")
    assert store.read("a") == b"first"


def test_a_listing_that_fails_is_an_error_and_never_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(f"local://{tmp_path}", single_driver=True)
    store.write("checkpoints/1/manifest.json", [b"x"])
    ls = LocalFileSystem.ls

    def forbid_below(self: LocalFileSystem, path: str, **options: Any) -> Any:
        if "checkpoints" in path:
            raise PermissionError(13, "Permission denied")
        return ls(self, path, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", forbid_below)
    with pytest.raises(StorageError, match=r"list 'checkpoints/'.*permission denied"):
        store.list("checkpoints/")


class FlatBucket(Bucket):
    """Lists all that begins with a prefix in one request, as buckets do; and counts those."""

    listed: ClassVar[list[str]] = []
    failure: ClassVar[Exception | None] = None

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        raise AssertionError("a bucket has no directories that one would have to ask for")

    async def _find(self, path: str, **kwargs: Any) -> list[str]:
        raise NotImplementedError

    def find(self, path: str, **kwargs: Any) -> list[str]:
        FlatBucket.listed.append(path)
        if FlatBucket.failure is not None:
            raise FlatBucket.failure
        return [name for name in self.store if name.startswith(f"{path}/") or name == path]


def test_a_bucket_is_listed_in_one_request_however_many_checkpoints_it_has(
    serve: Callable[[type[Bucket]], None],
) -> None:
    serve(FlatBucket)
    store = ObjectStore("s3://bucket/flat")
    FlatBucket.listed.clear()
    written = [f"checkpoints/{number:020d}/{name}" for number in range(300) for name in ("manifest.json", "blobs/g1")]
    for path in [*written, "owner.json"]:
        store.write(path, [b"x"])
    store._fs.pipe_file(store._full("checkpoints/.tmp-0000000000000-ab"), b"x")
    # Beside it, and not in it.
    ObjectStore("s3://bucket/flatter").write("owner.json", [b"x"])
    assert store.list("checkpoints/") == sorted(written)
    assert store.list("") == [*sorted(written), "owner.json"]
    assert store.list(written[0]) == [written[0]]
    assert store.list(written[0][:-5]) == [written[0]]
    assert store.list("owner.json/") == []
    assert len(FlatBucket.listed) == 5
    assert store.sweep_temporary() == 1


@pytest.mark.parametrize(
    ("failure", "is_empty"), [(FileNotFoundError("no such bucket"), True), (ServerError("SlowDown"), False)]
)
def test_a_listing_of_a_bucket_that_fails_is_an_error_and_one_of_nothing_is_empty(
    serve: Callable[[type[Bucket]], None], monkeypatch: pytest.MonkeyPatch, failure: Exception, is_empty: bool
) -> None:
    serve(FlatBucket)
    store = ObjectStore("s3://bucket/failing")
    monkeypatch.setattr(FlatBucket, "failure", failure)
    if is_empty:
        assert store.list("checkpoints/") == []
        return
    with pytest.raises(StorageError, match="cannot list"):
        store.list("checkpoints/")


def test_a_root_that_vanished_is_an_error_where_directories_exist(tmp_path: Path) -> None:
    store = ObjectStore(f"local://{tmp_path}/missing", single_driver=True)
    with pytest.raises(StorageError, match="no such file"):
        store.list("")
    store.check_writable()
    assert store.list("") == []


def test_unfinished_writes_are_listed_by_nobody_and_swept_when_they_are_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(f"local://{tmp_path}", single_driver=True)
    store.write("a/b", [b"x"])
    (tmp_path / "a" / paths.temporary_name()).write_bytes(b"half of")
    assert store.list("") == ["a/b"]
    assert store.sweep_temporary() == 0
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3700)
    assert store.sweep_temporary() == 1
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["b"]


class SlowBucket(Bucket):
    """Deletes nothing before two are asked for, and never what is said to be locked."""

    async_impl = True
    together = threading.Barrier(2, timeout=30)

    def rm_file(self, path: str) -> None:
        self.together.wait()
        if "locked" in path:
            raise PermissionError(path)
        super().rm_file(path)


def test_many_files_of_a_bucket_are_deleted_side_by_side_and_no_failure_is_overlooked(
    serve: Callable[[type[Bucket]], None],
) -> None:
    serve(SlowBucket)
    store = ObjectStore("s3://bucket/many")
    for path in ("a", "b", "c", "locked"):
        store.write(path, [b"x"])
    store.delete("a", "b")
    assert store.list("") == ["c", "locked"]
    with pytest.raises(StorageError, match=r"delete 'locked'.*permission denied"):
        store.delete("c", "locked")
    assert store.list("") == ["locked"]


def test_two_stores_in_one_memory_see_the_same_files() -> None:
    one, other = ObjectStore("memory://shared/place"), ObjectStore("memory://shared/place")
    assert one.exclusion is Exclusion.SAME_PROCESS
    assert one.create("a", b"x")
    assert not other.create("a", b"y")
    other.delete("a")
    assert one.list("") == []


def test_a_large_blob_in_memory_is_not_seen_before_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "SINGLE_PUT_BYTES_MAX", 1)
    store = ObjectStore("memory://whole")
    seen = []

    class Parts(list[Data]):
        """Looks at the store whenever somebody asks for the next part."""

        def __iter__(self) -> Iterator[Data]:
            for part in super().__iter__():
                seen.append(store.list(""))
                yield part

    store.write("a", Parts([b"xx", b"yy"]))
    assert seen
    assert not any(seen)
    assert store.read("a") == b"xxyy"
    store.delete("a")


def test_stores_side_by_side_do_not_see_each_other() -> None:
    one, other = ObjectStore("memory://side/a"), ObjectStore("memory://side/ab")
    one.write("x", [b"1"])
    other.write("y", [b"2"])
    assert (one.list(""), other.list("")) == (["x"], ["y"])
    one.delete("x")
    other.delete("y")


def test_a_url_without_a_bucket_is_refused(serve: Callable[[type[Bucket]], None]) -> None:
    serve(Bucket)
    with pytest.raises(OptionError, match="names no bucket"):
        ObjectStore("s3://")


def test_a_password_in_the_url_does_not_get_into_messages() -> None:
    store = ObjectStore("memory://user:secret@host/place")
    with pytest.raises(StorageError) as raised:
        store.read("missing")
    assert "secret" not in f"{raised.value} {store!r}"
    assert "host/place" in str(raised.value)


class FromArrow:
    """Stands for `pyarrow.fs.FileSystem`: opens every URL as a directory of this host."""

    root: ClassVar[str]

    @classmethod
    def from_uri(cls, url: str) -> tuple[Any, str]:
        if "refused" in url:
            raise OSError(f"connection refused: {url}\nand more\n" * 100)
        return pyarrow.fs.LocalFileSystem(), cls.root


@pytest.fixture
def only_arrow(serve: Callable[[type[Bucket]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let s3:// be a protocol for which fsspec's own package is not installed."""
    _registry.pop("s3", None)
    monkeypatch.setitem(known_implementations, "s3", {"class": "not_installed.FileSystem", "err": "Install s3fs"})
    monkeypatch.setattr(FromArrow, "root", str(tmp_path / "bucket"), raising=False)
    monkeypatch.setattr(pyarrow.fs, "FileSystem", FromArrow)


@pytest.mark.usefixtures("only_arrow")
def test_without_the_package_of_fsspec_arrow_opens_the_url_but_not_for_two_drivers(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"Install s3fs 2024.12.*single_driver=1"):
        ObjectStore("s3://bucket").check_writable()
    store = ObjectStore("s3://bucket", single_driver=True)
    store.check_writable()
    assert store.create("a/b", b"first")
    assert not store.create("a/b", b"second")
    store.write("a/b", [b"third"])
    assert store.read("a/b", 1, 3) == b"hir"
    assert store.list("") == ["a/b"]
    store.delete("a/b")
    store.delete("a/b")
    assert store.list("") == []


@pytest.mark.usefixtures("only_arrow")
def test_when_neither_can_open_the_url_both_reasons_are_given() -> None:
    with pytest.raises(StorageError, match=r"Install s3fs.*connection refused"):
        ObjectStore("s3://refused")
    with pytest.raises(StorageError) as raised:
        ObjectStore("s3://user:secret@refused")
    assert "secret" not in str(raised.value)
    assert len(str(raised.value)) < 500
    with pytest.raises(OptionError, match=r"storage options.*Install s3fs"):
        ObjectStore("s3://bucket", storage_options={"endpoint_url": "http://localhost"})


def test_an_upload_that_hangs_holds_up_no_other_file(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, hanging = threading.Event(), threading.Event()
    write = ObjectStore._write

    def slow(store: ObjectStore, full: str, parts: list[Data]) -> None:
        if full.endswith("stuck"):
            hanging.set()
            assert gate.wait(60)
        write(store, full, parts)

    monkeypatch.setattr(ObjectStore, "_write", slow)
    one, other = ObjectStore("memory://hangs/one"), ObjectStore("memory://hangs/other")
    created: list[bool] = []
    uploads = [threading.Thread(target=lambda: created.append(one.create("stuck", b"1")), daemon=True) for _ in "ab"]
    for upload in uploads:
        upload.start()
    try:
        assert hanging.wait(60)
        # In a thread, so that a lock that they share fails this test and does not hang it.
        free = threading.Thread(
            target=lambda: created.extend([one.create("free", b"2"), other.create("free", b"3")]), daemon=True
        )
        free.start()
        free.join(30)
        assert created == [True, True]
    finally:
        gate.set()
    for upload in uploads:
        upload.join(60)
    # Of the two that create the same file one wins all the same.
    assert sorted(created[2:]) == [False, True]
    assert object_store._PATH_LOCKS == {}
