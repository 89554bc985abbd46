"""A pipeline that has come to its end and goes on with more input: event time goes on from the time it had reached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock import Pipeline
from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader
from penstock.model.event_time import MAX_WATERMARK
from penstock.protocol.manifest import Manifest
from penstock.protocol.manifest.codec import decode_manifest_or_tombstone, encode_manifest
from penstock.storage import MemoryStore
from penstock.testing import CollectSink, run

SPLITS = 6


class Seconds(Source):
    """In each split one record for every second of event time; it ends after them, or waits for more."""

    def __init__(self, until_s: int, is_bounded: bool) -> None:
        self.until_s = until_s
        self.is_bounded = is_bounded

    def splits(self) -> Sequence[str]:
        return [f"split {number}" for number in range(SPLITS)]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return _Reader(self, split, json.loads(offset) if offset else 0)


class _Reader(SplitReader):
    def __init__(self, source: Seconds, split: str, at_s: int) -> None:
        self.source, self.split, self.at_s = source, split, at_s

    def read(self, rows_max: int) -> Any:
        if self.at_s >= self.source.until_s:
            return END_OF_SPLIT if self.source.is_bounded else None
        self.at_s += 1
        return pa.record_batch({"k": [self.split], "at": [(self.at_s - 1) * 1000]})

    def offset(self) -> bytes:
        return json.dumps(self.at_s).encode()


def pipeline(source: Source, sink: CollectSink) -> Pipeline:
    made = Pipeline("seconds")
    timed = made.source(source, name="source").with_watermark("at", "1 s", name="time")
    timed.key_by("k").window("1 s").aggregate(name="windows", n="count").sink(sink, name="sink")
    return made


def windows(sink: CollectSink) -> list[tuple[str, int]]:
    return sorted((row["k"], row["window_start"]) for row in sink.rows())


def manifests(store: MemoryStore) -> dict[str, Manifest]:
    found = {
        path: decode_manifest_or_tombstone(data) for path, data in store.blobs.items() if path.endswith("manifest.json")
    }
    return {path: manifest for path, manifest in found.items() if isinstance(manifest, Manifest)}


def write_the_end_as_a_clock(store: MemoryStore) -> None:
    """As manifests were written once."""
    for path, manifest in manifests(store).items():
        ended = [
            replace(report, watermarks=tuple((name, MAX_WATERMARK) for name, _ in report.watermarks))
            for report in manifest.reports
        ]
        store.blobs[path] = encode_manifest(replace(manifest, reports=tuple(ended)))


@pytest.mark.parametrize("is_old", [False, True], ids=["manifest of today", "manifest with the end in it"])
@pytest.mark.parametrize("parallelism", [2, 3, 1], ids=["as before", "more subtasks", "fewer subtasks"])
def test_windows_close_after_a_bounded_run_has_come_to_its_end(parallelism: int, is_old: bool) -> None:
    store, sink = MemoryStore(), CollectSink()
    run(pipeline(Seconds(10, is_bounded=True), sink), parallelism=2, store=store)
    assert windows(sink) == [(f"split {n}", 1000 * s) for n in range(SPLITS) for s in range(10)]
    if is_old:
        write_the_end_as_a_clock(store)
    more, expected = CollectSink(), [(f"split {n}", 1000 * s) for n in range(SPLITS) for s in range(10, 40)]
    result = run(
        pipeline(Seconds(42, is_bounded=False), more),
        parallelism=parallelism,
        store=store,
        until=lambda: len(more.rows()) >= len(expected),
    )
    assert windows(more) == expected
    assert result.rows_late == 0


def test_the_end_of_input_is_not_written_and_the_time_that_was_reached_is() -> None:
    store = MemoryStore()
    run(pipeline(Seconds(10, is_bounded=True), CollectSink()), parallelism=2, store=store)
    last = manifests(store)[max(manifests(store))]
    clocks = {clock for report in last.reports for _, clock in report.watermarks}
    # The newest record is of second 9, and the delay is one second.
    assert clocks == {8000}
