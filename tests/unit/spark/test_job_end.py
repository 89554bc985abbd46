"""The end of a pipeline whose store or sink hangs: it comes all the same."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.driver.attempts.phases import Phase
from penstock.errors import StorageError
from penstock.graph.physical import plan
from penstock.spark import job as job_module
from penstock.spark.job import Job
from penstock.spark.settings import Settings
from penstock.spark.worker_group import StoreAddress
from penstock.storage import LocalStore, paths
from penstock.storage.memory import MemoryStore
from penstock.storage.port import Store
from tests.unit.mailbox.fake_ports import Numbers, read

HANG_S = 60.0


class Hanging(MemoryStore):
    """Calls named in `hangs` never return; those in `fails` raise."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs: set[str] = set()
        self.fails: set[str] = set()
        self.entered = threading.Event()

    def list(self, prefix: str) -> list[str]:
        self._call("list")
        return super().list(prefix)

    def delete(self, *doomed: str) -> None:
        self._call("delete")
        super().delete(*doomed)

    def _call(self, what: str) -> None:
        if what in self.fails:
            raise StorageError(f"cannot {what}")
        if what in self.hangs:
            self.entered.set()
            threading.Event().wait()


def job_on(store: Store) -> Job:
    made = plan(read(Numbers({})), 1, workers=1)
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda key: "UTC"))
    return Job(spark, "p", made, Settings(), {}, store, StoreAddress("unused", {}), None)


def test_a_job_can_be_stopped_while_its_takeover_hangs(tmp_path: Path) -> None:
    store = Hanging()
    store.hangs = {"list"}
    job = job_on(store)._start()
    assert store.entered.wait(HANG_S)
    assert job.stop(timeout=HANG_S) is None
    assert paths.OWNER not in store.blobs


def test_a_request_that_takes_long_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_module, "_SLOW_S", 0.1)
    store = Hanging()
    store.hangs = {"list"}
    job = job_on(store)._start()
    with pytest.raises(TimeoutError, match=r"did not come .*: the pipeline is claiming"):
        job.stop(drain=True, timeout=0.3)
    assert "pipeline p: the drain is taking long: the pipeline is claiming" in caplog.text
    assert job.status.phase is Phase.CLAIMING
    job.stop(timeout=HANG_S)


@pytest.mark.parametrize("how", ["hangs", "fails"])
def test_an_owner_s_note_that_cannot_be_removed_neither_holds_up_the_end_nor_makes_it_a_failure(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_module, "_LAST_WORDS_S", 0.05)
    store = Hanging()
    store.hangs = {"list", "delete"} if how == "hangs" else {"list"}
    store.fails = {"delete"} if how == "fails" else set()
    job = job_on(store)._start()
    with caplog.at_level(logging.WARNING, "penstock"):
        assert job.stop(timeout=HANG_S) is None
    assert "owner.json could not be released" in caplog.text


def test_the_lease_is_renewed_while_every_other_call_of_the_store_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "BEAT_MS", 10)
    beats = threading.Semaphore(0)

    class Beating(LocalStore):
        def write(self, path: str, parts: Any) -> None:
            super().write(path, parts)
            if path == paths.OWNER:
                beats.release()

        def list(self, prefix: str) -> list[str]:
            threading.Event().wait()
            raise AssertionError

    job = job_on(Beating(tmp_path))._start()
    for _ in range(5):
        assert beats.acquire(timeout=HANG_S)
    job.stop(timeout=HANG_S)
