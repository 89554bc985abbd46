"""A pipeline that is killed and comes back changed, in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import RestoreError, StorageError
from penstock.pipeline import Pipeline
from penstock.protocol.coordinator.state import Mode, Policy
from penstock.protocol.manifest import Manifest
from penstock.protocol.manifest.codec import decode_manifest_or_tombstone
from penstock.protocol.ownership import Tombstone
from penstock.storage import MemoryStore, paths
from penstock.storage.port import Data
from penstock.testing import Result, run
from penstock.worker.settings import WorkerSettings

PATIENT = WorkerSettings(driver_silence_ms=3_600_000, channel_time_ms=0)


class Killed(BaseException):
    """The driver and all workers are gone."""


class UnmarkedStore(MemoryStore):
    """The driver dies between the manifest and the marker: no output counts as published."""

    def create(self, path: str, data: Data) -> bool:
        if paths.kind_of(path) is paths.PathKind.COMMITTED:
            raise StorageError("the driver dies before it marks the output as published")
        return super().create(path, data)


def newest(store: MemoryStore) -> Manifest | None:
    """The newest manifest of a store."""
    for path in sorted(store.list(""), reverse=True):
        if paths.kind_of(path) is paths.PathKind.MANIFEST:
            outcome = decode_manifest_or_tombstone(store.read(path))
            if not isinstance(outcome, Tombstone):
                return outcome
    return None


def rows_in_flight(manifest: Manifest | None) -> int:
    return sum(channel.rows for report in manifest.reports for channel in report.channels) if manifest else 0


def killed_when(pipeline: Pipeline, when: Callable[[Manifest], bool], **options: Any) -> MemoryStore:
    """Run with unaligned checkpoints until the newest one is as wanted, then end everything at once."""
    store = options.pop("store", None) or MemoryStore()

    def until() -> bool:
        manifest = newest(store)
        if manifest is not None and when(manifest):
            raise Killed
        return False

    policy = Policy(interval_ms=10, backoff_ms=5, mode=Mode.UNALIGNED, retained=50)
    options = {"parallelism": 2, "workers": 2, "policy": policy, "worker_settings": PATIENT, **options}
    try:
        run(pipeline, store=store, until=until, **options)
    except Killed:
        return store
    raise AssertionError("the pipeline ended before there was such a checkpoint")


def refusal(pipeline: Pipeline, store: MemoryStore, **options: Any) -> RestoreError:
    """The error of a start that is refused before any worker has opened an operator or read a record."""
    before = sorted(path for path in store.list("") if paths.kind_of(path) is paths.PathKind.MANIFEST)
    try:
        again(pipeline, store, **options)
    except RestoreError as error:
        manifests = [path for path in store.list("") if paths.kind_of(path) is paths.PathKind.MANIFEST]
        outcomes = {path: decode_manifest_or_tombstone(store.read(path)) for path in manifests if path not in before}
        assert all(isinstance(outcome, Tombstone) for outcome in outcomes.values()), "it took a checkpoint"
        return error
    raise AssertionError("it was not refused")


def again(pipeline: Pipeline, store: MemoryStore, **options: Any) -> Result:
    """Start on what is in the store, and run to the end."""
    return run(pipeline, store=store, **{"parallelism": 2, "workers": 2, "restarts": 0, **options})
