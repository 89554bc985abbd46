"""The tail of a sink's chain: what a checkpoint must hold, also of those that did not complete before it."""

from __future__ import annotations

import pyarrow as pa

from penstock.connectors.sink import Prepared, Sink, SinkWriter, nothing_prepared
from penstock.ids import CheckpointId, Generation, OperatorName
from penstock.worker.sink_stage import SinkStage, no_committables
from tests.unit.mailbox.fake_ports import rows, values

NONE, ONE, TWO, THREE = (CheckpointId(number) for number in range(4))


class Sparing(Sink, SinkWriter):
    """Hands over what was written since the last cut, if that is anything."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        self.held += values([batch])

    def prepare(self) -> Prepared:
        held, self.held = self.held, []
        return (lambda: [str(number).encode() for number in held]) if held else nothing_prepared


def stage() -> SinkStage:
    return SinkStage(OperatorName("write"), Sparing(), 0, Generation(1))


def handed_over(prepared: object) -> list[bytes]:
    assert callable(prepared)
    return [committable.payload for committable in prepared()]


def test_a_sink_with_nothing_to_hand_over_needs_no_thread() -> None:
    assert stage().prepare(ONE, NONE) is no_committables


def test_what_a_failed_checkpoint_had_is_handed_over_again_by_one_that_has_nothing_of_its_own() -> None:
    sink = stage()
    sink.process(rows(5), 0, lambda batch: None)
    assert handed_over(sink.prepare(ONE, NONE)) == [b"5"]
    assert handed_over(sink.prepare(TWO, NONE)) == [b"5"]
    assert sink.prepare(THREE, TWO) is no_committables, "checkpoint 2 is durable and holds it"


class Careless(Sparing):
    """Hands over an empty list where it has nothing, as a sink of a user may that does not know the name for it."""

    def prepare(self) -> Prepared:
        return list


def test_a_sink_that_hands_over_an_empty_list_publishes_nothing() -> None:
    sink = SinkStage(OperatorName("write"), Careless(), 0, Generation(1))
    assert handed_over(sink.prepare(ONE, NONE)) == []
