"""A process that is killed in the middle of writing a blob, and the generation after it, which clears up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import GeneratorSource, Pipeline
from penstock.driver.checkpoints.pruning import sweep
from penstock.ids import CheckpointId, Generation, SubtaskId
from penstock.protocol.coordinator.state import Policy
from penstock.storage import LocalStore, paths
from penstock.storage.object_store import ObjectStore
from penstock.storage.port import Store
from penstock.testing import CollectSink, run
from penstock.worker.settings import WorkerSettings

KILLED_AT_BLOB = 4


def make(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array([f"key-{number % 3000:010d}" for number in range(start, start + count)])})


def run_on(root: Path) -> None:
    pipeline = Pipeline("p")
    counted = pipeline.source(GeneratorSource(make, rows=10_000), name="read").key_by("k").count(name="count")
    counted.sink(CollectSink(), name="out")
    settings = WorkerSettings(inline_bytes_max=1_000, source_rows_max=500, driver_silence_ms=3_600_000)
    run(pipeline, store=LocalStore(root), policy=Policy(interval_ms=5), worker_settings=settings)


def die_while_writing(root: Path) -> None:
    """What the child process does: it is killed when the bytes of a blob are written, and not yet synced."""
    from penstock.storage import local

    sync, blobs = local._sync, 0

    def dying(descriptor: int) -> None:
        nonlocal blobs
        blobs += "/blobs/.tmp-" in os.readlink(f"/proc/self/fd/{descriptor}")
        if blobs == KILLED_AT_BLOB:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    local._sync = dying
    run_on(root)


def temporaries(root: Path) -> list[Path]:
    return [path for path in root.rglob(".tmp-*") if path.is_file()]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs to know which file a descriptor belongs to")
def test_the_next_start_removes_what_a_killed_writer_has_left(tmp_path: Path) -> None:
    here = "from tests.unit.storage.test_killed_writer import die_while_writing as die; import pathlib, sys; "
    child = subprocess.run(
        [sys.executable, "-c", f"{here} die(pathlib.Path(sys.argv[1]))", tmp_path], timeout=300, check=False
    )
    assert child.returncode == -signal.SIGKILL
    (left,) = temporaries(tmp_path)
    assert left.stat().st_size > 1_000
    run_on(tmp_path)
    assert temporaries(tmp_path) == []
    assert not left.parent.exists()


def unfinished(root: Path, path: str, age_s: float = 0) -> Path:
    """The temporary file of a write to `path` that began `age_s` ago."""
    born_ms = int((time.time() - age_s) * 1000)
    torn = root / Path(path).parent / f".tmp-{born_ms:013d}-00000000000000ff"
    torn.parent.mkdir(parents=True, exist_ok=True)
    torn.write_bytes(b"half of")
    os.utime(torn, (born_ms / 1000, born_ms / 1000))
    return torn


def blob(checkpoint: int) -> str:
    return paths.blob(CheckpointId(checkpoint), Generation(1), SubtaskId("count", 0), paths.BlobContent.STATE)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_a_live_writer_of_the_current_generation_keeps_its_files_whoever_sweeps(tmp_path: Path, kind: str) -> None:
    store: Store = LocalStore(tmp_path) if kind == "local" else ObjectStore(f"local://{tmp_path}", single_driver=True)
    older = unfinished(tmp_path, blob(4))
    outcome = unfinished(tmp_path, paths.manifest(CheckpointId(4)))
    own = unfinished(tmp_path, blob(5))
    abandoned = [unfinished(tmp_path, paths.OWNER, age_s=7200), unfinished(tmp_path, blob(9), age_s=7200)]
    # A driver that was asleep sweeps late: it knows of no id that a newer generation writes blobs for.
    assert sweep(store, CheckpointId(3)) == 2
    assert [path.exists() for path in (older, outcome, own, *abandoned)] == [True, True, True, False, False]
    # The takeover that reserved 5 declares 4 void, and publishes it, beside its own sweep.
    assert sweep(store, CheckpointId(5)) == 1
    assert [path.exists() for path in (older, outcome, own)] == [False, True, True]
