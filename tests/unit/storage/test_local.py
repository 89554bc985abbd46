"""What a directory adds to the contract: other processes, crashes, power failures, and disks that say no."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StorageError
from penstock.storage import LocalStore, local, paths
from penstock.storage.local_directories import KEPT_MAX

MANIFEST = "checkpoints/1/manifest.json"
CONTENT = bytes(range(256)) * 40


def start(program: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Run `program` in a Python of its own, which imports what this one does."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )


def every_file(root: Path) -> list[str]:
    return sorted(str(file.relative_to(root)) for file in root.rglob("*") if file.is_file())


# --- Other processes ------------------------------------------------------------------------------------------

RACER = """
    import sys
    from penstock.storage import LocalStore

    root, me, races = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = LocalStore(root)
    print("ready", flush=True)
    sys.stdin.readline()
    print("".join("1" if store.create(f"races/{race}/outcome", me.encode() * 5000) else "0" for race in range(races)))
"""


def test_of_processes_that_race_to_create_exactly_one_wins_and_its_content_stays(tmp_path: Path) -> None:
    races = 60
    racers = [start(RACER, tmp_path, me, races) for me in range(4)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    wins = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    store = LocalStore(tmp_path)
    for race in range(races):
        winners = [me for me, line in enumerate(wins) if line[race] == "1"]
        assert len(winners) == 1
        assert store.read(f"races/{race}/outcome") == b"%d" % winners[0] * 5000
    assert len(every_file(tmp_path)) == races


@pytest.mark.parametrize("is_shared", [False, True], ids=["a store each", "one store"])
def test_creating_survives_others_who_remove_the_directory_when_it_is_empty(tmp_path: Path, is_shared: bool) -> None:
    turns = 300
    begin = threading.Barrier(3)

    shared = LocalStore(tmp_path)

    def come_and_go(me: int) -> int:
        store = shared if is_shared else LocalStore(tmp_path)
        begin.wait()
        created = 0
        for _ in range(turns):
            created += store.create(f"a/b/{me}", b"x")
            store.delete(f"a/b/{me}")
        return created

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(come_and_go, range(3))) == [turns] * 3
    assert list(tmp_path.iterdir()) == []


# --- Crashes --------------------------------------------------------------------------------------------------

# For each of `points` a process in a directory of that name, which ends itself without mercy just before or just after
# that call into the operating system that changes something; a write that is to be interrupted first gets half of its
# bytes through. They are forks of one process: to start one takes longer than all that it does.
VICTIM = """
    import os, signal, sys
    from penstock.storage import LocalStore

    directory, operation, path, points, moment = sys.argv[1:]

    def calls_until(point):
        store = LocalStore(f"{directory}/{point}")
        calls = 0

        def dangerous(name, call):
            def wrapper(*arguments, **options):
                nonlocal calls
                calls += 1
                if calls != point:
                    return call(*arguments, **options)
                try:
                    if moment == "after":
                        call(*arguments, **options)
                    elif name == "writev":
                        os.write(arguments[0], bytes(arguments[1][-1])[:5000])
                finally:
                    os.kill(os.getpid(), signal.SIGKILL)
            return wrapper

        for name in ["mkdir", "open", "writev", "fsync", "close", "link", "replace", "unlink"]:
            setattr(os, name, dangerous(name, getattr(os, name)))
        content = bytes(range(256)) * 40
        if operation == "create":
            store.create(path, content)
        else:
            store.write(path, [content[:100], content[100:]])
        return calls

    for point in map(int, points.split(",")):
        victim = os.fork()
        if victim == 0:
            os._exit(calls_until(point))
        print(os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]), flush=True)
"""


def crash(directory: Path, operation: str, points: Iterable[int], moment: str) -> list[int | None]:
    """For each point None if the victim died as it should, or the number of its calls if it survived."""
    victims = start(VICTIM, directory, operation, MANIFEST, ",".join(map(str, points)), moment)
    output, _ = victims.communicate(timeout=60)
    assert victims.returncode == 0
    codes = [int(line) for line in output.split()]
    assert all(code > 0 or code == -signal.SIGKILL for code in codes)
    return [None if code < 0 else code for code in codes]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("operation", "before"), [("create", None), ("write", None), ("write", b"the version before")])
def test_a_process_killed_at_any_point_leaves_all_of_the_file_or_nothing(
    tmp_path: Path, operation: str, moment: str, before: bytes | None
) -> None:
    [calls] = crash(tmp_path, operation, [0], moment)
    assert calls is not None
    assert calls >= 8
    points = range(1, calls + 1)
    if before is not None:
        for point in points:
            LocalStore(tmp_path / str(point)).write(MANIFEST, [before])
    survived = crash(tmp_path, operation, points, moment)
    # Where a file exists its directories do, so that there are fewer calls at which to die.
    assert survived == [None] * calls or before is not None
    assert None in survived
    seen = set()
    for point in points:
        root = tmp_path / str(point)
        store = LocalStore(root)
        listed = store.list("")
        content = store.read(MANIFEST) if listed else None
        assert listed in ([], [MANIFEST])
        assert content in (before, CONTENT)
        seen.add(content)
        # Life goes on: the name is free if and only if nothing is there, and what was left over can be swept.
        assert store.create(MANIFEST, b"next") is (content is None)
        store.sweep_temporary(age_s=0)
        assert every_file(root) == [MANIFEST]
    assert seen == {before, CONTENT}


def test_the_torn_file_of_a_crash_is_listed_by_nobody_and_swept_when_it_is_old(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write("a/b", [b"x"])
    torn = tmp_path / "a" / paths.temporary_name()
    torn.write_bytes(b"half of")
    alone = tmp_path / "c" / "d" / paths.temporary_name()
    alone.parent.mkdir(parents=True)
    alone.write_bytes(b"")
    assert store.list("") == store.list("a/") == ["a/b"]
    assert store.sweep_temporary(age_s=3600) == 0
    assert torn.exists()
    os.utime(torn, (0, 0))
    os.utime(alone, (0, 0))
    assert store.sweep_temporary(age_s=3600) == 2
    assert every_file(tmp_path) == ["a/b"]
    assert not (tmp_path / "c").exists()


def test_a_sweep_spares_every_file_that_is_not_an_unfinished_write(tmp_path: Path) -> None:
    for name in ["manifest.json", ".tmp-notes", ".tmp-1-ab", "a.tmp-0000000000000-ab"]:
        (tmp_path / name).write_bytes(b"x")
    assert LocalStore(tmp_path).sweep_temporary(age_s=0) == 0
    assert len(every_file(tmp_path)) == 4


# --- Power failures -------------------------------------------------------------------------------------------


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the store asks of the operating system, in order, with the names of the files that it syncs."""
    events: list[str] = []

    def record(name: str, describe: Callable[..., str]) -> None:
        call = getattr(os, name)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            events.append(f"{name} {describe(*arguments)}")
            return result

        monkeypatch.setattr(os, name, wrapper)

    def shown(path: str) -> str:
        name = os.path.basename(path)
        return "temporary" if name.startswith(".tmp-") else name

    record("fsync", lambda descriptor: shown(os.readlink(f"/proc/self/fd/{descriptor}")))
    record("writev", lambda descriptor, _: shown(os.readlink(f"/proc/self/fd/{descriptor}")))
    record("link", lambda _, target: shown(target))
    record("replace", lambda _, target: shown(target))
    record("mkdir", lambda path, *_: shown(path))
    record("unlink", shown)
    record("rmdir", shown)
    return events


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="names of open files come from /proc")


@needs_proc
def test_a_file_gets_its_name_after_its_bytes_are_durable_and_every_directory_above_it_is_synced(
    tmp_path: Path, story: list[str]
) -> None:
    root = tmp_path / "root"
    store = LocalStore(root)
    assert story == ["mkdir root", f"fsync {tmp_path.name}"]
    story.clear()
    store.create(MANIFEST, b"x")
    assert story == [
        "mkdir checkpoints",
        "mkdir 1",
        "writev temporary",
        "fsync temporary",
        "link manifest.json",
        "unlink temporary",
        "fsync 1",
        "fsync checkpoints",
        "fsync root",
    ]


@needs_proc
def test_a_replaced_file_is_synced_in_the_same_order(tmp_path: Path, story: list[str]) -> None:
    store = LocalStore(tmp_path)
    store.write("owner.json", [b"x"])
    expected = ["writev temporary", "fsync temporary", "replace owner.json", f"fsync {tmp_path.name}"]
    assert [event for event in story if not event.startswith("unlink")] == expected


@needs_proc
def test_directories_that_somebody_else_made_are_synced_all_the_same(tmp_path: Path, story: list[str]) -> None:
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    store = LocalStore(tmp_path)
    story.clear()
    store.create(MANIFEST, b"x")
    assert story[-3:] == ["fsync 1", "fsync checkpoints", f"fsync {tmp_path.name}"]


@needs_proc
def test_who_is_told_that_a_file_exists_may_rely_on_it_after_a_power_failure(tmp_path: Path, story: list[str]) -> None:
    LocalStore(tmp_path).create(MANIFEST, b"x")
    story.clear()
    assert not LocalStore(tmp_path).create(MANIFEST, b"y")
    assert story[-3:] == ["fsync 1", "fsync checkpoints", f"fsync {tmp_path.name}"]
    assert every_file(tmp_path) == [MANIFEST]


@needs_proc
def test_a_delete_is_durable_and_takes_empty_directories_along(tmp_path: Path, story: list[str]) -> None:
    store = LocalStore(tmp_path)
    store.create(MANIFEST, b"x")
    store.create("checkpoints/2/manifest.json", b"x")
    story.clear()
    store.delete(MANIFEST)
    assert story == ["unlink manifest.json", "rmdir 1", "fsync checkpoints"]
    store.delete("checkpoints/2/manifest.json")
    assert list(tmp_path.iterdir()) == []
    assert tmp_path.exists()


@needs_proc
def test_who_deletes_many_files_syncs_each_directory_once(tmp_path: Path, story: list[str]) -> None:
    store = LocalStore(tmp_path)
    blobs = [f"checkpoints/{number}/blobs/{name}" for number in (1, 2) for name in "abc"]
    for path in (*blobs, MANIFEST, "checkpoints/2/manifest.json"):
        store.create(path, b"x")
    story.clear()
    store.delete(*blobs[:2], *blobs[3:])
    unlinked = ["unlink a", "unlink b", "unlink a", "unlink b", "unlink c"]
    # What became empty is gone, and it is that which must be durable.
    assert story == [*unlinked, "rmdir blobs", "fsync blobs", "fsync 2"]
    assert store.list("") == [blobs[2], MANIFEST, "checkpoints/2/manifest.json"]


@needs_proc
def test_a_directory_that_is_empty_only_when_those_below_it_are_gone_goes_too(tmp_path: Path, story: list[str]) -> None:
    store = LocalStore(tmp_path)
    store.create("a/1", b"x")
    store.create("a/b/2", b"x")
    story.clear()
    store.delete("a/1", "a/b/2", "a/c/never")
    assert story == ["unlink 1", "unlink 2", "rmdir b", "rmdir a", f"fsync {tmp_path.name}"]
    assert list(tmp_path.iterdir()) == []


@needs_proc
def test_a_delete_that_finds_nothing_makes_the_delete_of_somebody_else_durable(
    tmp_path: Path, story: list[str]
) -> None:
    store = LocalStore(tmp_path)
    store.create(MANIFEST, b"x")
    store.create("checkpoints/1/reserved.json", b"x")
    (tmp_path / MANIFEST).unlink()
    story.clear()
    store.delete(MANIFEST)
    assert story == ["fsync 1"]
    story.clear()
    store.delete("checkpoints/7/manifest.json")
    assert story == ["fsync checkpoints"]


@needs_proc
@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "the server says stale"])
def test_a_directory_that_somebody_else_removes_during_a_delete_is_gone_durably(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: list[str], is_remote: bool
) -> None:
    store = LocalStore(tmp_path)
    for path in ("a/b/1", "a/2", "c/3", "c/4"):
        store.create(path, b"x")
    fsync = os.fsync

    def remove_first(descriptor: int) -> None:
        if os.path.exists(tmp_path / "a/b"):
            # Another one deletes 'a/b/0', which kept the directory, and then the directory.
            os.unlink(tmp_path / "a/b/0")
            os.rmdir(tmp_path / "a/b")
        if is_remote and os.fstat(descriptor).st_nlink == 0:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        fsync(descriptor)

    (tmp_path / "a/b/0").write_bytes(b"y")
    monkeypatch.setattr(os, "fsync", remove_first)
    story.clear()
    store.delete("a/b/1", "c/3")
    synced = [event for event in story if event.startswith("fsync")]
    assert "fsync c" in synced
    assert synced[-1] == "fsync a"
    assert store.list("") == ["a/2", "c/4"]


# --- How little is asked of the disk --------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of every call into the operating system that a store makes, in order."""
    names: list[str] = []

    def record(name: str) -> None:
        call = getattr(os, name)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            names.append(name)
            return call(*arguments, **options)

        monkeypatch.setattr(os, name, wrapper)

    for name in (
        *("open", "close", "writev", "pread", "fsync", "stat", "lstat", "fstat", "scandir", "listdir", "readlink"),
        *("link", "replace", "unlink", "mkdir", "rmdir", "urandom", "access"),
    ):
        record(name)
    return names


def test_a_write_into_a_known_directory_takes_seven_calls_and_two_syncs(tmp_path: Path, calls: list[str]) -> None:
    store = LocalStore(tmp_path)
    for number in range(5):
        calls.clear()
        store.write(f"checkpoints/1/blobs/{number}", [b"a", b"b"])
    assert calls == ["open", "writev", "fsync", "close", "lstat", "replace", "fsync"]


def test_so_does_a_create(tmp_path: Path, calls: list[str]) -> None:
    store = LocalStore(tmp_path)
    for number in range(5):
        calls.clear()
        assert store.create(f"checkpoints/1/{number}", b"x")
    assert calls == ["open", "writev", "fsync", "close", "link", "unlink", "fsync"]


def test_a_read_looks_whether_the_directory_is_the_one_it_knows(tmp_path: Path, calls: list[str]) -> None:
    store = LocalStore(tmp_path)
    store.write("checkpoints/1/blobs/a", [b"0123456789"])
    for _ in range(3):
        calls.clear()
        assert store.read("checkpoints/1/blobs/a", 2, 3) == b"234"
    assert calls == ["stat", "open", "fstat", "pread", "close"]


def test_a_new_directory_is_synced_once_and_only_the_new_ones_above_it(tmp_path: Path, calls: list[str]) -> None:
    store = LocalStore(tmp_path)
    syncs = []
    for path in ("checkpoints/1/a", "checkpoints/1/b", "checkpoints/2/a", "checkpoints/2/blobs/a", "checkpoints/2/b"):
        calls.clear()
        store.write(path, [b"x"])
        syncs.append(calls.count("fsync"))
    # The file and its directory; 'checkpoints' and the root; 'checkpoints' for 2; 2 for 'blobs'.
    assert syncs == [4, 2, 3, 3, 2]


def test_threads_that_write_into_a_new_directory_sync_those_above_it_once(tmp_path: Path, calls: list[str]) -> None:
    store = LocalStore(tmp_path)
    begin = threading.Barrier(4)

    def write(number: int) -> None:
        begin.wait()
        store.write(f"checkpoints/1/blobs/{number}", [b"x"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    # Four files, and for each the directory in which it is; then the three above that.
    assert calls.count("fsync") == 4 + 4 + 3
    assert calls.count("mkdir") == 3
    assert len(store.list("")) == 4


def test_a_retirement_of_a_checkpoint_syncs_once_for_each_of_its_stages(tmp_path: Path, calls: list[str]) -> None:
    store = LocalStore(tmp_path)
    blobs = [f"checkpoints/1/blobs/{number}" for number in range(6)]
    for path in ("checkpoints/1/reserved.json", *blobs, MANIFEST, "checkpoints/2/reserved.json"):
        store.create(path, b"x")
    calls.clear()
    for stage in ([MANIFEST], blobs, ["checkpoints/1/reserved.json"]):
        store.delete(*stage)
    assert calls.count("fsync") == 3
    assert store.list("") == ["checkpoints/2/reserved.json"]


def test_no_more_directories_stay_open_than_allowed_and_none_without_the_store(tmp_path: Path) -> None:
    def open_below_root() -> list[str]:
        found = []
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return [path for path in found if path.startswith(str(tmp_path))]

    store = LocalStore(tmp_path)
    assert open_below_root() == []
    for number in range(3 * KEPT_MAX):
        store.write(f"checkpoints/{number}/a", [b"x"])
    assert 3 <= len(open_below_root()) <= KEPT_MAX + 2
    del store
    assert open_below_root() == []


# --- What is known of a directory, and what others do to it ---------------------------------------------------


@needs_proc
@pytest.mark.parametrize("operation", ["create", "write"])
@pytest.mark.parametrize("removed", ["checkpoints/1", "checkpoints"])
def test_a_directory_that_somebody_removed_and_made_again_is_not_taken_for_the_one_that_was_synced(
    tmp_path: Path, story: list[str], operation: str, removed: str
) -> None:
    store = LocalStore(tmp_path)
    store.create(MANIFEST, b"x")
    (tmp_path / MANIFEST).unlink()
    for directory in ("checkpoints/1", "checkpoints")[: 1 if removed == "checkpoints/1" else 2]:
        (tmp_path / directory).rmdir()
    (tmp_path / "checkpoints/1").mkdir(parents=True)
    story.clear()
    if operation == "create":
        assert store.create(MANIFEST, b"y")
    else:
        store.write(MANIFEST, [b"y"])
    # The store let go of all of them, and so takes nothing above for granted either.
    assert story[-3:] == ["fsync 1", "fsync checkpoints", f"fsync {tmp_path.name}"]
    assert every_file(tmp_path) == [MANIFEST]


@needs_proc
def test_a_directory_whose_sync_failed_is_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: list[str]
) -> None:
    store = LocalStore(tmp_path)
    fsync = os.fsync

    def refuse_the_root(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), os.stat(tmp_path)):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    with monkeypatch.context() as patched, pytest.raises(StorageError, match="disk reports an error"):
        patched.setattr(os, "fsync", refuse_the_root)
        store.write("a/1", [b"x"])
    story.clear()
    store.write("a/2", [b"x"])
    assert [event for event in story if event.startswith("fsync")] == [
        "fsync temporary",
        "fsync a",
        f"fsync {tmp_path.name}",
    ]


@pytest.mark.parametrize("moved", ["root/a/b", "root/a", "root"])
@pytest.mark.parametrize("operation", ["create", "write"])
def test_who_writes_into_a_directory_that_was_moved_is_told_and_then_goes_by_the_name(
    tmp_path: Path, operation: str, moved: str
) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    store = LocalStore(root)
    store.write("a/b/1", [b"x"])
    (tmp_path / moved).rename(elsewhere)
    root.mkdir(exist_ok=True)
    before = every_file(elsewhere)

    def operate() -> None:
        if operation == "create":
            assert store.create("a/b/2", b"y")
        else:
            store.write("a/b/2", [b"y"])

    with pytest.raises(StorageError, match=f"cannot {operation} 'a/b/2': there is no"):
        operate()
    operate()
    assert every_file(elsewhere) == before
    assert every_file(root) == ["a/b/2"]


@pytest.mark.parametrize("moved", ["root/a/b", "root/a", "root"])
def test_who_reads_or_deletes_goes_by_the_name_and_not_after_a_directory_that_was_moved(
    tmp_path: Path, moved: str
) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    store = LocalStore(root)
    store.write("a/b/1", [b"x"])
    (tmp_path / moved).rename(elsewhere)
    before = every_file(elsewhere)
    root.mkdir(exist_ok=True)
    with pytest.raises(StorageError, match="a/b/1"):
        store.read("a/b/1")
    store.delete("a/b/1")
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/1").write_bytes(b"another")
    assert store.read("a/b/1") == b"another"
    store.delete("a/b/1")
    assert every_file(root) == []
    assert every_file(elsewhere) == before


# --- How bytes are written ------------------------------------------------------------------------------------


def test_parts_reach_the_kernel_uncopied_however_little_it_takes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [b"a" * 10, b"b" * 7, b"c", b"d" * 30]
    writev = os.writev
    vectors = []

    def reluctant(descriptor: int, views: list[memoryview]) -> int:
        assert all(any(view.obj is part for part in parts) for view in views)
        vectors.append(len(views))
        return writev(descriptor, [views[0][:4]])

    monkeypatch.setattr(os, "writev", reluctant)
    monkeypatch.setattr(local, "_VECTOR_MAX", 2)
    LocalStore(tmp_path).write("a/b", [memoryview(part) for part in parts])
    assert (tmp_path / "a" / "b").read_bytes() == b"".join(parts)
    assert max(vectors) == 2
    assert len(vectors) == 3 + 2 + 1 + 8


def test_a_lost_reply_of_a_file_server_does_not_hide_that_the_file_was_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_and_lose_the_reply(source: str, target: str, *, dst_dir_fd: int) -> None:
        link(source, target, dst_dir_fd=dst_dir_fd)
        raise FileExistsError(errno.EEXIST, "File exists", target)

    monkeypatch.setattr(os, "link", link_and_lose_the_reply)
    assert LocalStore(tmp_path).create("a", b"x")
    assert every_file(tmp_path) == ["a"]


def test_a_file_that_appears_while_ours_is_being_written_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def be_overtaken(source: str, target: str, *, dst_dir_fd: int) -> None:
        (tmp_path / target).write_bytes(b"theirs")
        link(source, target, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "link", be_overtaken)
    assert not LocalStore(tmp_path).create("a", b"ours")
    assert LocalStore(tmp_path).read("a") == b"theirs"
    assert every_file(tmp_path) == ["a"]


# --- Disks that say no ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["create", "write"])
@pytest.mark.parametrize(
    ("call", "code", "cure"),
    [
        ("writev", errno.ENOSPC, "disk is full"),
        ("writev", errno.EDQUOT, "quota"),
        ("fsync", errno.EIO, "disk reports an error"),
        ("open", errno.EROFS, "read-only"),
        ("open", errno.EACCES, "Permission denied: give"),
        ("open", errno.EMFILE, "too many open files"),
        ("writev", errno.EBADMSG, "Look at the directory"),
    ],
)
def test_an_error_of_the_disk_names_the_path_and_the_cure_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, call: str, code: int, cure: str
) -> None:
    store = LocalStore(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched, pytest.raises(StorageError, match=f"{operation} 'a/b'.*{cure}"):
        patched.setattr(os, call, refuse)
        store.create("a/b", b"x") if operation == "create" else store.write("a/b", [b"x"])
    assert every_file(tmp_path) == []
    assert store.create("a/b", b"y")


def test_a_file_system_without_hard_links_is_found_out_when_the_store_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageError, match="no hard links"):
        LocalStore(tmp_path).check_writable()
    assert every_file(tmp_path) == []


def test_a_file_system_that_cannot_sync_directories_is_good_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_sync", lambda _: None)

    def refuse(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    assert LocalStore(tmp_path).create("a/b", b"x")


def test_an_error_while_syncing_a_directory_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_sync", lambda _: None)

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match="disk reports an error"):
        LocalStore(tmp_path).create("a/b", b"x")


def test_a_file_in_the_place_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_bytes(b"x")
    store = LocalStore(tmp_path)
    with pytest.raises(StorageError, match=r"create 'checkpoints/1/manifest.json'.*a file where a directory should be"):
        store.create(MANIFEST, b"x")
    with pytest.raises(StorageError, match=r"write 'checkpoints/1/manifest.json'.*a file where a directory should be"):
        store.write(MANIFEST, [b"x"])


def test_a_directory_in_the_place_of_a_file_is_an_error_and_not_a_file_that_exists(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    store = LocalStore(tmp_path)
    for operate in (
        lambda: store.create("a", b"x"),
        lambda: store.write("a", [b"x"]),
        lambda: store.read("a"),
        lambda: store.delete("a"),
    ):
        with pytest.raises(StorageError, match=r"'a'.*a directory where a file should be"):
            operate()
    assert every_file(tmp_path) == []


def test_a_root_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"x")
    for root in (tmp_path / "root", tmp_path / "root" / "below"):
        with pytest.raises(StorageError, match="a file where a directory should be"):
            LocalStore(root)


def test_a_root_that_vanished_is_an_error_and_never_an_empty_store(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    store = LocalStore(root)
    root.rmdir()
    for operate in (
        lambda: store.list(""),
        lambda: store.list("checkpoints/"),
        lambda: store.create("a/b", b"x"),
        lambda: store.write("a", [b"x"]),
        lambda: store.delete("a/b"),
    ):
        with pytest.raises(StorageError, match=r"(is gone|there is no).*disk|disk.*(is gone|there is no)"):
            operate()
    assert not root.exists()


def test_those_who_only_look_do_not_make_the_root(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no directory"):
        LocalStore(tmp_path / "missing", create_root=False)
    assert list(tmp_path.iterdir()) == []


# --- Links ----------------------------------------------------------------------------------------------------


def test_the_root_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = LocalStore(tmp_path / "link")
    assert store.create("a/b", b"x")
    assert store.list("") == ["a/b"]
    assert every_file(tmp_path / "real") == ["a/b"]
    store.delete("a/b")
    assert (tmp_path / "link").is_symlink()


def test_a_root_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    with pytest.raises(StorageError, match="dangling symbolic link"):
        LocalStore(tmp_path / "link")


@pytest.mark.parametrize("inside", ["escape", "escape/secret"])
def test_a_symbolic_link_inside_does_not_lead_out(tmp_path: Path, inside: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "root-outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    store = LocalStore(root)
    (root / "escape").symlink_to(outside if "/" in inside else outside / "secret")
    for operate in (
        lambda: store.read(inside),
        lambda: store.write(inside, [b"x"]),
        lambda: store.create(inside + "2" if "/" in inside else inside, b"x"),
        lambda: store.delete(inside),
    ):
        with pytest.raises(StorageError, match="leads out"):
            operate()
    assert store.list("") == []
    assert every_file(outside) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


def test_a_symbolic_link_that_stays_inside_is_not_followed_either(tmp_path: Path) -> None:
    # It is not listed, so what is written through it would never be found; and where it leads may change at any time.
    store = LocalStore(tmp_path)
    store.write("a/b", [b"x"])
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for operate in (
        lambda: store.read("link/b"),
        lambda: store.write("link/b", [b"y"]),
        lambda: store.create("link/c", b"y"),
        lambda: store.delete("link/b"),
    ):
        with pytest.raises(StorageError, match="refused path 'link'"):
            operate()
    assert every_file(tmp_path) == ["a/b"]


def test_a_link_that_takes_the_place_of_a_known_directory_does_not_lead_out(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    store = LocalStore(root)
    store.write("a/b", [b"x"])
    (root / "a").rename(outside)
    (root / "a").symlink_to(outside)
    for operate in (lambda: store.read("a/b"), lambda: store.delete("a/b"), lambda: store.write("a/c", [b"y"])):
        with pytest.raises(StorageError, match="leads out"):
            operate()
    assert every_file(outside) == ["b"]
