"""What every store promises, asked of every store."""

from __future__ import annotations

import array
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import CorruptBlob, StorageError
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId
from penstock.storage import LocalStore, MemoryStore, Store, paths
from penstock.storage.object_store import ObjectStore

HOSTILE_PATHS = [
    "",
    "/",
    "/etc/passwd",
    "../outside",
    "a/../../outside",
    "a/./b",
    "a//b",
    "a/",
    ".hidden",
    "a/.tmp-0000000000000-00",
    "a\0b",
    "a\nb",
    "a\\..\\b",
    "x" * 256,
    "x/" * 600 + "x",
    "\ud800",
]


@pytest.fixture(params=["memory", "local", "object store in memory", "object store on directories"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    match request.param:
        case "memory":
            yield MemoryStore()
        case "local":
            yield LocalStore(tmp_path / "root")
        case "object store in memory":
            in_memory = ObjectStore(f"memory://{uuid.uuid4()}")
            yield in_memory
            for path in in_memory.list(""):
                in_memory.delete(path)
        case _:
            on_directories = ObjectStore(f"local://{tmp_path}/root", single_driver=True)
            on_directories.check_writable()
            yield on_directories


def test_what_is_created_can_be_read(store: Store) -> None:
    assert store.create("checkpoints/1/manifest.json", b"content")
    assert store.read("checkpoints/1/manifest.json") == b"content"


def test_creating_again_says_false_and_changes_nothing(store: Store) -> None:
    assert store.create("a/b", b"first")
    assert not store.create("a/b", b"second")
    assert not store.create("a/b", b"first")
    assert store.read("a/b") == b"first"


def test_an_empty_file_exists_as_much_as_any_other(store: Store) -> None:
    assert store.create("a/empty", b"")
    assert not store.create("a/empty", b"")
    store.write("a/written", [])
    assert store.list("a/") == ["a/empty", "a/written"]
    assert store.read("a/empty") == store.read("a/written") == b""
    assert store.read("a/empty", 0, 0) == b""


def test_what_was_deleted_can_be_created_again(store: Store) -> None:
    assert store.create("a/b", b"first")
    store.delete("a/b")
    assert store.create("a/b", b"second")
    assert store.read("a/b") == b"second"


def test_create_yields_to_a_file_that_was_written(store: Store) -> None:
    store.write("owner.json", [b"written"])
    assert not store.create("owner.json", b"created")
    assert store.read("owner.json") == b"written"


def test_of_threads_that_race_to_create_exactly_one_wins_and_its_content_stays(store: Store) -> None:
    contenders = 8
    start = threading.Barrier(contenders)

    def contend(me: int) -> list[bool]:
        wins = []
        for race in range(20):
            start.wait()
            wins.append(store.create(f"races/{race}", b"%d" % me * 1000))
        return wins

    with ThreadPoolExecutor(contenders) as pool:
        wins = list(pool.map(contend, range(contenders)))
    for race in range(20):
        winners = [me for me in range(contenders) if wins[me][race]]
        assert len(winners) == 1
        assert store.read(f"races/{race}") == b"%d" % winners[0] * 1000


def test_write_concatenates_its_parts(store: Store) -> None:
    numbers = memoryview(array.array("q", [1, 2]))
    parts = [b"ab", b"", memoryview(b"cdef")[1:3], numbers, pa.py_buffer(b"arrow"), memoryview(b"")]
    store.write("a/b", parts)
    assert store.read("a/b") == b"abde" + numbers.tobytes() + b"arrow"


def test_write_takes_more_parts_than_one_system_call_does(store: Store) -> None:
    parts = [b"%d," % number for number in range(5000)]
    store.write("a/b", parts)
    assert store.read("a/b") == b"".join(parts)


def test_write_replaces_all_of_what_was_there(store: Store) -> None:
    store.write("a/b", [b"a long first version"])
    store.write("a/b", [b"short"])
    assert store.read("a/b") == b"short"


def test_readers_of_a_file_that_is_being_replaced_see_one_version_or_the_other(store: Store) -> None:
    versions = [bytes([number]) * 50_000 for number in range(4)]
    store.write("a/b", [versions[0]])
    done = threading.Event()

    def replace() -> None:
        for turn in range(60):
            store.write("a/b", [versions[turn % 4][:10], versions[turn % 4][10:]])
        done.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(replace)
        while not (done.is_set() or writing.done()):
            assert store.read("a/b") in versions
            assert store.list("") == ["a/b"]
        writing.result()


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, None, b"0123456789"),
        (0, 10, b"0123456789"),
        (0, 3, b"012"),
        (4, 3, b"456"),
        (9, 1, b"9"),
        (4, None, b"456789"),
        (4, 0, b""),
        (10, 0, b""),
        (10, None, b""),
    ],
)
def test_a_range_can_be_read(store: Store, offset: int, length: int | None, expected: bytes) -> None:
    store.write("a/b", [b"0123456789"])
    assert store.read("a/b", offset, length) == expected


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (9, 2), (11, None), (11, 0), (100, 1), (0, 2**62)])
def test_fewer_bytes_than_asked_for_is_an_error_that_names_the_path_and_the_size(
    store: Store, offset: int, length: int | None
) -> None:
    store.write("a/b", [b"0123456789"])
    with pytest.raises(CorruptBlob, match=r"a/b.* 10 bytes"):
        store.read("a/b", offset, length)


@pytest.mark.parametrize(("offset", "length"), [(-1, None), (-3, 2), (0, -1)])
def test_a_negative_range_is_refused(store: Store, offset: int, length: int | None) -> None:
    store.write("a/b", [b"0123456789"])
    with pytest.raises(StorageError, match="cannot be negative"):
        store.read("a/b", offset, length)


@pytest.mark.parametrize(("offset", "length"), [(0, None), (0, 0), (3, None)])
def test_reading_what_is_not_there_is_an_error_that_names_the_path(
    store: Store, offset: int, length: int | None
) -> None:
    with pytest.raises(StorageError, match="a/missing"):
        store.read("a/missing", offset, length)


def test_listing_is_sorted_by_the_whole_path(store: Store) -> None:
    written = ["b", "a/b/c", "a-b", "a/b-c", "a/10", "a/9", "B", "a.b"]
    for path in written:
        store.write(path, [b"x"])
    assert store.list("") == sorted(written)


def test_a_prefix_need_not_end_at_a_slash(store: Store) -> None:
    for path in ["checkpoints/01/m", "checkpoints/02/m", "checkpoints/10/m", "owner.json"]:
        store.write(path, [b"x"])
    assert store.list("checkpoints/0") == ["checkpoints/01/m", "checkpoints/02/m"]
    assert store.list("checkpoints/02/") == ["checkpoints/02/m"]
    assert store.list("checkpoints/10/m") == ["checkpoints/10/m"]
    assert store.list("checkpoints/10/m/") == []
    assert store.list("check") == ["checkpoints/01/m", "checkpoints/02/m", "checkpoints/10/m"]
    assert store.list("nothing/here/") == []


def test_an_empty_store_lists_nothing(store: Store) -> None:
    assert store.list("") == []
    assert store.list("checkpoints/") == []


def test_a_listing_follows_every_change_at_once(store: Store) -> None:
    store.write("a/1", [b"x"])
    assert store.list("a/") == ["a/1"]
    assert store.create("a/2", b"x")
    assert store.list("a/") == ["a/1", "a/2"]
    store.delete("a/1")
    assert store.list("a/") == ["a/2"]


def test_deleting_what_is_gone_is_no_error(store: Store) -> None:
    store.delete("never/was")
    store.write("a/b", [b"x"])
    store.delete("a/b")
    store.delete("a/b")
    assert store.list("") == []


def test_many_can_be_deleted_at_once_whether_they_are_there_or_not(store: Store) -> None:
    every = [f"a/{number % 3}/{number}" for number in range(12)]
    for path in every:
        store.write(path, [b"x"])
    store.delete(*every[:10], "a/never", "never/was", *every[:2])
    assert store.list("") == sorted(every[10:])
    store.delete()
    assert store.list("") == sorted(every[10:])


def test_one_hostile_path_among_many_is_refused_before_anything_is_deleted(store: Store) -> None:
    store.write("a/b", [b"x"])
    with pytest.raises(StorageError, match="refused path"):
        store.delete("a/b", "../outside")
    assert store.list("") == ["a/b"]


def test_delete_spares_the_neighbours(store: Store) -> None:
    store.write("a/b", [b"x"])
    store.write("a/bc", [b"y"])
    store.delete("a/b")
    assert store.read("a/bc") == b"y"


OPERATIONS: list[Callable[[Store, str], object]] = [
    lambda store, path: store.create(path, b"x"),
    lambda store, path: store.write(path, [b"x"]),
    lambda store, path: store.read(path),
    lambda store, path: store.delete(path),
]


@pytest.mark.parametrize("operate", OPERATIONS, ids=["create", "write", "read", "delete"])
@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=ascii)
def test_a_hostile_path_is_refused_by_every_operation(
    store: Store, path: str, operate: Callable[[Store, str], object], tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match="refused path"):
        operate(store, path)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("prefix", ["/", "/etc/", "../", "a/../", "a//", ".tmp"])
def test_a_hostile_prefix_is_refused(store: Store, prefix: str) -> None:
    with pytest.raises(StorageError, match="refused prefix"):
        store.list(prefix)


def test_every_path_of_the_layout_can_be_stored(store: Store) -> None:
    subtask = SubtaskId(OperatorName("Wörter / zählen: ../%2e%2e " * 20), 3)
    path = paths.blob(CheckpointId(10**20 - 1), Generation(2**63), subtask, paths.BlobContent.CHANNELS, 12)
    store.write(path, [b"x"])
    assert store.list(paths.CHECKPOINTS) == [path]
