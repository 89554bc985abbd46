"""What a user may write as a checkpoint directory, and what is answered to the rest."""

from __future__ import annotations

import uuid
from pathlib import Path

import fsspec
import pytest

from penstock.errors import OptionError, StorageError
from penstock.storage import LocalStore, open_store
from penstock.storage.object_store import Exclusion, ObjectStore


def test_a_plain_path_a_path_object_and_a_file_url_open_the_same_directory(tmp_path: Path) -> None:
    root = tmp_path / "with space, 100% #1?"
    for url in (
        str(root),
        root,
        root.as_uri(),
        f"file:{root.as_uri()[7:]}",
        root.as_uri().replace("//", "//localhost", 1),
    ):
        store = open_store(url)
        assert isinstance(store, LocalStore)
        assert store.root == root
    assert list(root.iterdir()) == []


def test_a_relative_path_stays_what_it_was_when_the_process_moves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("checkpoints/of/mine")
    monkeypatch.chdir("/")
    assert store.create("a", b"x")
    assert (tmp_path / "checkpoints/of/mine/a").read_bytes() == b"x"


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = open_store("~/checkpoints")
    assert isinstance(store, LocalStore)
    assert store.root == tmp_path / "checkpoints"


def test_a_store_can_be_opened_again_by_its_own_url(tmp_path: Path) -> None:
    here = open_store(tmp_path / "ü %20")
    assert isinstance(here, LocalStore)
    assert here.create("a", b"x")
    assert open_store(here.url, check=False).read("a") == b"x"
    there = open_store(f"local://{tmp_path}/there?single_driver=1")
    assert isinstance(there, ObjectStore)
    again = open_store(there.url, check=False)
    assert isinstance(again, ObjectStore)
    assert again.exclusion is Exclusion.SINGLE_DRIVER


def test_any_other_url_is_opened_by_fsspec() -> None:
    store = open_store(f"memory://{uuid.uuid4()}")
    assert isinstance(store, ObjectStore)
    assert store.list("") == []


def test_checking_leaves_no_trace_in_a_directory_behind_fsspec(tmp_path: Path) -> None:
    open_store(f"local://{tmp_path}/root?single_driver=true")
    assert list((tmp_path / "root").iterdir()) == []


def test_a_place_where_two_drivers_could_not_be_kept_apart_is_refused_at_once(tmp_path: Path) -> None:
    for url in (f"local://{tmp_path}", f"local://{tmp_path}?single_driver=0"):
        with pytest.raises(StorageError, match="single_driver=1"):
            open_store(url)


def test_without_the_check_nothing_is_touched(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no directory"):
        open_store(tmp_path / "missing", check=False)
    open_store(f"local://{tmp_path}/missing", check=False)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_found_out_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StorageError, match="a file where a directory should be"):
        open_store(tmp_path / "file" / "checkpoints")
    with pytest.raises(StorageError, match="local://"):
        open_store(f"local://{tmp_path}/file/checkpoints?single_driver=1")


@pytest.mark.parametrize(
    ("url", "answer"),
    [
        ("", "it must be a path or a URL"),
        ("a\0b", "it must be a path or a URL"),
        ("s3:/bucket/directory", "two slashes"),
        ("file://host/directory", "three slashes"),
        ("file:///a%00b", "three slashes"),
        ("simplecache::memory://place", "chain of file systems"),
        ("nonsense://place", "not a URL that fsspec can open"),
        ("memory://place?speed=11", "unknown option 'speed'"),
        ("memory://place?single_driver=maybe", "must be 1 or 0"),
    ],
)
def test_what_cannot_be_a_checkpoint_directory_is_refused_with_a_reason(url: str, answer: str) -> None:
    with pytest.raises(OptionError, match=answer):
        open_store(url)


def test_hdfs_without_its_libraries_is_refused_with_the_variables_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(url: str, **options: object) -> None:
        raise OSError("Unable to load libjvm")

    monkeypatch.setattr(fsspec.core, "url_to_fs", no_library)
    with pytest.raises(StorageError, match=r"Unable to load libjvm\. HDFS is opened by pyarrow.*CLASSPATH"):
        open_store("hdfs://cluster/checkpoints")
    with pytest.raises(StorageError, match=r"Unable to load libjvm$"):
        open_store("sftp://host/checkpoints")
