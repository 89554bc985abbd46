"""Compatibility, case by case: which changes of a pipeline a checkpoint bears, and the error for the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import IncompatibleCheckpoint
from penstock.ids import CheckpointId, EdgeId, Generation, OperatorName, SubtaskId
from penstock.protocol.manifest import (
    ChannelSegment,
    Committable,
    EdgeShape,
    Manifest,
    OperatorShape,
    Partitioning,
    PipelineShape,
    RecordShape,
    Segment,
    Side,
    SplitState,
    StateKind,
    StateSegment,
    SubtaskReport,
)
from penstock.protocol.manifest.compatibility import EVENT_TIME_COLUMN, check_fits, check_states

READ, SIDE, COUNT, NOTE, OUT = (OperatorName(name) for name in ("read", "side", "count", "note", "out"))
LEFT, RIGHT = EdgeId(READ, COUNT, 0), EdgeId(SIDE, COUNT, 1)
SOURCE = (("source", "FileSource"), ("directory", "/data"))


def edge(of: EdgeId = LEFT, how: Partitioning = Partitioning.HASH, *key: str, **records: object) -> EdgeShape:
    return EdgeShape(of, how, 2, 2, RecordShape(key or ("k",), **records))  # type: ignore[arg-type]


OPERATORS = (
    OperatorShape(READ, READ, 2, (), "source", SOURCE),
    OperatorShape(SIDE, SIDE, 2, (), "source", (("source", "ListSource"),)),
    OperatorShape(COUNT, COUNT, 2, ("k",), "window", (("windows", "10 ms"), ("aggregates", "count(*)"))),
    OperatorShape(NOTE, COUNT, 2, ("k",), "with_event_time", (("column", "at"),)),
    OperatorShape(OUT, COUNT, 2, ("k",), "sink", (("sink", "ParquetSink"), ("directory", "/out"))),
)
SHAPE = PipelineShape("orders", 128, OPERATORS, (edge(), edge(RIGHT, Partitioning.HASH, "id")))


def report(chain: OperatorName = COUNT, **parts: object) -> SubtaskReport:
    return SubtaskReport(SubtaskId(chain, 0), **parts)  # type: ignore[arg-type]


def checkpoint(*reports: SubtaskReport, of: PipelineShape = SHAPE) -> Manifest:
    return Manifest(CheckpointId(9), Generation(1), of, reports)


def state(operator: OperatorName = COUNT, kind: StateKind = StateKind.KEYED, declared: str = "") -> SubtaskReport:
    return report(states=(StateSegment(operator, "total", kind, Segment(1, 1), 1, 0, 64, declared),))


def flight(on: EdgeId = LEFT) -> SubtaskReport:
    return report(channels=(ChannelSegment(on, 0, 1, Side.SENDER, Segment(1, 1), 1),))


POSITIONS = report(READ, splits=(SplitState(READ, "a", b"1"),))
OUTPUT = report(committables=(Committable(OUT, 0, b"file"),))
EMPTY = checkpoint(report())


def with_operator(name: OperatorName, **changes: object) -> PipelineShape:
    changed = tuple(replace(each, **changes) if each.name == name else each for each in OPERATORS)  # type: ignore[arg-type]
    return replace(SHAPE, operators=changed)


def without(name: OperatorName) -> PipelineShape:
    return replace(SHAPE, operators=tuple(each for each in OPERATORS if each.name != name))


def with_edges(*edges: EdgeShape) -> PipelineShape:
    return replace(SHAPE, edges=edges)


def by(*key: str) -> PipelineShape:
    return with_edges(edge(LEFT, Partitioning.HASH, *key), SHAPE.edges[1])


def timed(column: str) -> PipelineShape:
    return with_operator(NOTE, definition=((EVENT_TIME_COLUMN, column),))


SWAPPED = with_edges(edge(EdgeId(SIDE, COUNT, 0)), edge(EdgeId(READ, COUNT, 1), Partitioning.HASH, "id"))
OTHER_RIGHT = with_edges(edge(), edge(RIGHT, Partitioning.HASH, "customer"))
FULL = checkpoint(state(), POSITIONS, flight(), OUTPUT)

REFUSED = {
    "name": (
        FULL,
        replace(SHAPE, name="returns"),
        "it was taken by pipeline 'orders', and this pipeline is 'returns': use another",
    ),
    "max_parallelism": (FULL, replace(SHAPE, max_parallelism=64), "which cannot change: set it to that instead of 64"),
    "operator gone": (
        checkpoint(state()),
        without(COUNT),
        "has state of operator 'count', which this pipeline does not have: give the operator that continues it "
        "name='count', or set allow_dropped_state=True",
    ),
    "source gone": (checkpoint(POSITIONS), without(READ), "has positions of source 'read', which this pipeline"),
    "kind": (
        checkpoint(state()),
        with_operator(COUNT, kind="process", definition=()),
        "of operator 'count', whose operator was window and is process here: put it back, or give it another name",
    ),
    "windows": (
        checkpoint(state()),
        with_operator(COUNT, definition=(("windows", "20 ms"), ("aggregates", "count(*)"))),
        "whose windows was 10 ms and is 20 ms here: put it back, or",
    ),
    "a setting that is new": (
        checkpoint(state()),
        with_operator(COUNT, definition=(*OPERATORS[2].definition, ("on", "at"))),
        "whose on was not set and is at here",
    ),
    "event time of a clock": (
        checkpoint(state(NOTE, StateKind.LIST)),
        with_operator(NOTE, definition=(("column", "seen"),)),
        "of operator 'note', whose column was at and is seen here",
    ),
    "event time of a watermark": (
        checkpoint(report(watermarks=((COUNT, 1_000),)), of=timed("at")),
        timed("seen"),
        "has a watermark of operator 'note', whose event-time column was at and is seen here: put it back, or use",
    ),
    "directory of a source": (
        checkpoint(POSITIONS),
        with_operator(READ, definition=(("source", "FileSource"), ("directory", "/other"))),
        "of source 'read', whose directory was /data and is /other here: put it back, or give it another name",
    ),
    "key of keyed state": (
        checkpoint(state()),
        by("k", "day"),
        r"'count' keyed by \(k\), but here it is keyed by \(k, day\): its state cannot be found by another key",
    ),
    "order of the key": (
        checkpoint(state(), of=by("k", "day")),
        by("day", "k"),
        r"keyed by \(k, day\), but here it is keyed by \(day, k\)",
    ),
    "key of records in hand": (
        checkpoint(state(kind=StateKind.LIST)),
        by("day"),
        r"keyed by \(k\), but here it is keyed by \(day\)",
    ),
    "no key": (
        checkpoint(state()),
        with_edges(EdgeShape(LEFT, Partitioning.REBALANCE, 2, 2, RecordShape()), SHAPE.edges[1]),
        r"keyed by \(k\), but here it is keyed by nothing",
    ),
    "key of the right side": (
        checkpoint(state()),
        OTHER_RIGHT,
        r"keyed by \(id\) on input 1, but here it is keyed by \(customer\): its state cannot be found",
    ),
    "inputs swapped": (
        checkpoint(state(kind=StateKind.BROADCAST)),
        SWAPPED,
        "whose input 0 was 'read', which is input 1 here: connect the streams in the old order",
    ),
    "edge gone": (
        checkpoint(flight()),
        with_edges(SHAPE.edges[1]),
        "in flight on the edge read->count, which this pipeline does not have: start the pipeline as it was, stop it "
        "with a savepoint, and start the new one from that",
    ),
    "partitioning in flight": (
        checkpoint(flight()),
        with_edges(edge(LEFT, Partitioning.REBALANCE), SHAPE.edges[1]),
        "on the edge read->count, whose partitioning was hash and is rebalance here: put it back, or start the",
    ),
    "key in flight": (
        checkpoint(flight()),
        by("day"),
        r"on the edge read->count, whose key was \(k\) and is \(day\) here: put it back, or start the pipeline as",
    ),
    "key in flight on the right side": (
        checkpoint(flight(RIGHT)),
        OTHER_RIGHT,
        r"on the edge side->count#1, whose key was \(id\) and is \(customer\) here",
    ),
    "inputs swapped in flight": (
        checkpoint(flight()),
        SWAPPED,
        "on the edge read->count, which this pipeline does not",
    ),
    "columns in flight": (
        checkpoint(flight()),
        with_edges(edge(columns=("k", "n")), SHAPE.edges[1]),
        r"whose set of columns that travel was all columns and is \(k, n\) here",
    ),
    "declared schema in flight": (
        checkpoint(flight(), of=with_edges(edge(schema=("k: int64",)), SHAPE.edges[1])),
        with_edges(edge(schema=("k: string",)), SHAPE.edges[1]),
        r"whose declared schema was \(k: int64\) and is \(k: string\) here",
    ),
    "sink gone": (
        checkpoint(OUTPUT),
        without(OUT),
        "has output of sink 'out' that is not published yet, and this pipeline has no such sink: put it back under "
        "that name, start the pipeline until its next checkpoint is complete, and rename or remove the sink then",
    ),
    "another sink": (
        checkpoint(OUTPUT),
        with_operator(OUT, definition=(("sink", "CollectSink"),)),
        "of sink 'out' that is not published yet, whose sink was ParquetSink and is CollectSink here: put it back, or "
        "start the pipeline with the old sink until its next checkpoint is complete",
    ),
    "directory of a sink": (
        checkpoint(OUTPUT),
        with_operator(OUT, definition=(("sink", "ParquetSink"), ("directory", "/new"))),
        "whose directory was /out and is /new here",
    ),
}


@pytest.mark.parametrize(("taken", "shape", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_change_that_the_checkpoint_depends_on_is_refused_with_a_way_out(
    taken: Manifest, shape: PipelineShape, message: str
) -> None:
    check_fits(taken, taken.shape)
    with pytest.raises(IncompatibleCheckpoint, match=message) as caught:
        check_fits(taken, shape)
    assert str(caught.value).startswith("it ")


@pytest.mark.parametrize(
    "shape",
    [shape for _, shape, _ in REFUSED.values() if (shape.name, shape.max_parallelism) == ("orders", 128)],
    ids=[case for case, (_, shape, _) in REFUSED.items() if (shape.name, shape.max_parallelism) == ("orders", 128)],
)
def test_the_same_change_is_allowed_where_nothing_in_the_checkpoint_depends_on_it(shape: PipelineShape) -> None:
    check_fits(EMPTY, shape)


def test_the_same_pipeline_fits_at_any_parallelism() -> None:
    check_fits(FULL, SHAPE)
    operators = tuple(replace(each, parallelism=7) for each in OPERATORS)
    edges = tuple(replace(each, senders=7, receivers=3) for each in SHAPE.edges)
    check_fits(FULL, replace(SHAPE, operators=operators, edges=edges))


def test_state_is_dropped_only_if_the_user_allows_it() -> None:
    check_fits(checkpoint(state()), without(COUNT), allow_dropped_state=True)
    with pytest.raises(IncompatibleCheckpoint):
        check_fits(checkpoint(state()), with_operator(COUNT, kind="process"), allow_dropped_state=True)


def test_output_is_never_dropped_whatever_the_user_allows() -> None:
    with pytest.raises(IncompatibleCheckpoint, match="output of sink 'out'"):
        check_fits(checkpoint(OUTPUT), without(OUT), allow_dropped_state=True)


def test_a_sink_whose_output_is_published_may_be_renamed_or_changed() -> None:
    check_fits(checkpoint(OUTPUT), without(OUT), is_committed=True)
    check_fits(checkpoint(OUTPUT), with_operator(OUT, definition=()), is_committed=True)


def test_a_clock_that_has_not_begun_speaks_for_no_column() -> None:
    check_fits(checkpoint(report(watermarks=((COUNT, -(2**63)),)), of=timed("at")), timed("seen"))


def test_broadcast_state_does_not_depend_on_how_other_records_are_keyed() -> None:
    check_fits(checkpoint(state(kind=StateKind.BROADCAST)), by("day"))


def test_a_stream_behind_a_keyed_input_may_be_renamed_if_nothing_is_in_flight() -> None:
    renamed = with_edges(edge(EdgeId(OperatorName("reading"), COUNT, 0)), SHAPE.edges[1])
    check_fits(checkpoint(state()), renamed)


def test_an_operator_that_leaves_the_chain_of_a_keyed_one_keeps_its_state() -> None:
    alone = with_operator(NOTE, chain=NOTE, key=())
    check_fits(checkpoint(state(NOTE, StateKind.LIST)), alone)


class TestManifestsOfEarlierVersions:
    OLD = PipelineShape(
        "orders",
        128,
        tuple(OperatorShape(each.name, each.chain, 2, each.key) for each in OPERATORS),
        tuple(EdgeShape(each.edge, each.partitioning, 2, 2) for each in SHAPE.edges),
    )

    def test_facts_that_were_not_recorded_are_not_compared(self) -> None:
        old = checkpoint(state(), POSITIONS, flight(), OUTPUT, of=self.OLD)
        check_fits(old, SHAPE)
        check_fits(old, with_operator(COUNT, definition=(("windows", "20 ms"),)))

    def test_the_key_of_the_first_input_was_recorded(self) -> None:
        with pytest.raises(IncompatibleCheckpoint, match=r"keyed by \(k\), but here it is keyed by \(day\)"):
            check_fits(checkpoint(state(), of=self.OLD), with_operator(COUNT, key=("day",)))


class TestStates:
    TAKEN = checkpoint(state(declared="value (n: int64)"), state(NOTE, StateKind.LIST))

    def test_states_that_are_declared_as_before_fit_and_new_ones_may_come(self) -> None:
        declared = {"total": (StateKind.KEYED, "value (n: int64)"), "new": (StateKind.KEYED, "list (n: int64)")}
        check_states(self.TAKEN, COUNT, declared)
        check_states(self.TAKEN, NOTE, {"total": (StateKind.LIST, "")})
        check_states(self.TAKEN, READ, {})

    @pytest.mark.parametrize(
        ("declared", "message"),
        [
            ({}, "has keyed state 'total' of operator 'count', which does not have such a state any more: ask for it"),
            ({"total": (StateKind.LIST, "")}, "which does not have such a state any more"),
            (
                {"total": (StateKind.KEYED, "value (n: int64, at: int64)")},
                r"was declared as value \(n: int64\) and is value \(n: int64, at: int64\) here: state is not converted",
            ),
        ],
        ids=["gone", "another kind", "another schema"],
    )
    def test_a_state_that_is_declared_otherwise_is_refused(
        self, declared: dict[str, tuple[StateKind, str]], message: str
    ) -> None:
        with pytest.raises(IncompatibleCheckpoint, match=message):
            check_states(self.TAKEN, COUNT, declared)

    def test_a_state_that_the_operator_deletes_is_not_missed(self) -> None:
        check_states(self.TAKEN, COUNT, {}, removed={"total"})

    def test_a_declaration_that_was_not_recorded_is_not_compared(self) -> None:
        check_states(checkpoint(state()), COUNT, {"total": (StateKind.KEYED, "list (n: int64)")})
