"""Side outputs: a batch goes only to the edges of its output, and everything else goes over all edges."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock import END_OF_SPLIT, Pipeline, PipelineError, Source, SplitReader
from penstock.connectors.source import Portion
from penstock.graph.physical import plan
from penstock.ids import MAIN_OUTPUT, OperatorName
from penstock.protocol.manifest import RecordShape
from penstock.protocol.manifest.compatibility import check_fits
from penstock.testing import CollectSink, ListSource, Schedule, run

COUNT = 300


class Sorting(Source):
    """Numbers: even ones to the main output, odd ones to the side output `odd`."""

    side_outputs = ("odd",)

    def splits(self) -> list[str]:
        return ["0", "1", "2"]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return _Reader(int(split) * COUNT, json.loads(offset) if offset else 0)


class _Reader(SplitReader):
    def __init__(self, first: int, at: int) -> None:
        self.first = first
        self.at = at

    def read(self, rows_max: int) -> Any:
        if self.at == COUNT:
            return END_OF_SPLIT
        count = min(rows_max, 7, COUNT - self.at)
        numbers = range(self.first + self.at, self.first + self.at + count)
        self.at += count
        even, odd = ([n for n in numbers if n % 2 == rest] for rest in (0, 1))
        records = pa.RecordBatch.from_pydict({"n": even}) if even else None
        return Portion(records, {"odd": pa.RecordBatch.from_pydict({"odd": odd})})

    def offset(self) -> bytes:
        return json.dumps(self.at).encode()


def side(stream: Any, output: str) -> Any:
    from penstock.api.stream import Stream
    from penstock.graph.edges import side_ports

    return Stream(stream.pipeline, side_ports(stream.pipeline._nodes, stream._ports, output, "cure"))


def described() -> tuple[Pipeline, CollectSink, CollectSink]:
    pipeline, even, odd = Pipeline("numbers"), CollectSink(), CollectSink()
    stream = pipeline.source(Sorting(), name="read")
    stream.map(lambda batch: batch, name="same").sink(even, name="even")
    side(stream, "odd").rebalance().map(lambda batch: batch, name="slow").sink(odd, name="odd")
    return pipeline, even, odd


def test_the_main_output_is_chained_although_a_side_output_leaves_from_the_middle_of_the_chain() -> None:
    physical = plan(described()[0].graph(), 2)
    assert [node.name for node in physical.chains[OperatorName("read")].nodes] == ["read", "same", "even"]
    assert [(str(edge.id), edge.output, edge.schema) for edge in physical.edges] == [("read->slow", "odd", None)]


@pytest.mark.parametrize("seed", range(15))
def test_each_record_comes_out_once_on_its_own_output_through_crashes(seed: int) -> None:
    pipeline, even, odd = described()
    crashes = [1, 2] if seed % 2 else []
    run(
        pipeline,
        parallelism=1 + seed % 3,
        workers=1 + seed % 2,
        crash_after_checkpoints=crashes,
        schedule=Schedule(seed),
    )
    assert sorted(row["n"] for row in even.rows()) == list(range(0, 3 * COUNT, 2))
    assert sorted(row["odd"] for row in odd.rows()) == list(range(1, 3 * COUNT, 2))


def test_an_output_that_nobody_reads_is_refused_when_the_pipeline_is_built() -> None:
    pipeline = Pipeline("numbers")
    pipeline.source(Sorting(), name="read").sink(CollectSink())
    with pytest.raises(PipelineError, match=r"the output 'odd' of 'read' is not read.*\.side_output\(.odd.\)\.sink"):
        pipeline.graph()


def test_only_a_side_output_that_is_read_does_not_do() -> None:
    pipeline = Pipeline("numbers")
    side(pipeline.source(Sorting(), name="read"), "odd").sink(CollectSink())
    with pytest.raises(PipelineError, match="the output of 'read' goes nowhere"):
        pipeline.graph()


@pytest.mark.parametrize("call", ["dead_letters", "late"])
def test_an_output_that_an_operator_does_not_have_is_refused_with_the_cure(call: str) -> None:
    stream = Pipeline("p").source(ListSource([{"n": 1}]), name="read")
    with pytest.raises(PipelineError, match=rf"{call}\(\): 'read' has no such output.*and set "):
        getattr(stream, call)()


def test_a_checkpoint_knows_which_output_an_edge_reads_and_an_old_one_means_the_main_one() -> None:
    shape = plan(described()[0].graph(), 2).shape()
    assert [edge.records.output for edge in shape.edges if edge.records] == ["odd"]
    assert RecordShape().output == MAIN_OUTPUT


def test_records_in_flight_of_one_output_do_not_become_those_of_another() -> None:
    from dataclasses import replace

    from penstock.errors import IncompatibleCheckpoint
    from penstock.ids import CheckpointId, Generation, SubtaskId
    from penstock.protocol.manifest import ChannelSegment, Manifest, Segment, Side, SubtaskReport

    shape = plan(described()[0].graph(), 2).shape()
    (edge,) = shape.edges
    channel = ChannelSegment(edge.edge, 0, 0, Side.SENDER, Segment(1, 1, inline=b"x"), 1)
    report = SubtaskReport(SubtaskId(OperatorName("slow"), 0), channels=(channel,))
    manifest = Manifest(CheckpointId(1), Generation(1), shape, (report,))
    check_fits(manifest, shape)
    assert edge.records is not None
    changed = replace(shape, edges=(replace(edge, records=replace(edge.records, output=MAIN_OUTPUT)),))
    with pytest.raises(IncompatibleCheckpoint, match="whose output was odd and is main here"):
        check_fits(manifest, changed)


def test_late_records_are_a_stream_with_all_their_columns() -> None:
    rows = [{"k": 1, "at": at, "note": f"at {at}"} for at in (0, 10_000, 100, 200)]
    pipeline, counts, late = Pipeline("views"), CollectSink(), CollectSink()
    stream = pipeline.source(ListSource(rows, batch_rows=1)).with_watermark("at", 0)
    windows = stream.key_by("k").window("1 s", late="stream").count("n")
    windows.sink(counts)
    windows.late().sink(late)
    result = run(pipeline, crash_after_checkpoints=1)
    assert result.rows_late == 0
    assert late.rows() == rows[2:]
    assert sorted(row["n"] for row in counts.rows()) == [1, 1]
