"""The tail of a sink's chain: committables are handed over until a checkpoint has them for good."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from penstock.ids import CheckpointId, OperatorName
from penstock.protocol.manifest import Committable
from penstock.runtime.sink_stage import SinkStage
from tests.unit.runtime.fake_ports import GENERATION, Staging, StagingWriter, rows

WRITE = OperatorName("write")
NONE, ONE, TWO, THREE = (CheckpointId(number) for number in range(4))


def nowhere(batch: object) -> None:
    raise AssertionError("a sink emits nothing")


class Choosy(StagingWriter):
    wants_input = True  # type: ignore[assignment]


class TestStage:
    def setup_method(self) -> None:
        self.sink = Staging()
        self.stage = SinkStage(WRITE, self.sink, 3, GENERATION)

    def write(self, *numbers: int) -> None:
        self.stage.process(rows(*numbers), 0, nowhere)

    def committables(self, *payloads: bytes) -> list[Committable]:
        return [Committable(WRITE, 3, payload) for payload in payloads]

    def test_what_was_written_before_the_cut_belongs_to_the_checkpoint_and_nothing_else(self) -> None:
        self.write(1, 2)
        prepare = self.stage.prepare(ONE, NONE)
        self.write(3)
        assert prepare() == self.committables(b"1,2")

    def test_the_committables_of_a_checkpoint_that_failed_are_handed_over_again(self) -> None:
        self.write(1)
        self.stage.prepare(ONE, NONE)
        self.write(2)
        assert self.stage.prepare(TWO, completed=NONE)() == self.committables(b"1", b"2")

    def test_even_if_nobody_ever_ran_the_preparation_of_the_one_that_failed(self) -> None:
        self.write(1)
        self.stage.prepare(ONE, NONE)
        self.stage.prepare(TWO, NONE)
        assert self.stage.prepare(THREE, NONE)() == self.committables(b"1")

    def test_what_a_durable_checkpoint_holds_is_not_handed_over_again(self) -> None:
        self.write(1)
        self.stage.prepare(ONE, NONE)()
        self.write(2)
        self.stage.prepare(TWO, NONE)()
        self.write(3)
        assert self.stage.prepare(THREE, completed=TWO)() == self.committables(b"3")

    def test_a_durable_checkpoint_covers_those_before_it_and_not_those_after_it(self) -> None:
        self.write(1)
        self.stage.prepare(ONE, NONE)()
        self.write(2)
        self.stage.prepare(TWO, NONE)()
        assert self.stage.prepare(THREE, completed=ONE)() == self.committables(b"2")

    def test_a_preparation_that_failed_is_tried_again_by_the_next_checkpoint(self) -> None:
        self.write(1)
        self.sink.failing.add("stage")
        with pytest.raises(ValueError, match="cannot stage"):
            self.stage.prepare(ONE, NONE)()
        self.sink.failing.clear()
        assert self.stage.prepare(TWO, NONE)() == self.committables(b"1")

    def test_a_preparation_that_succeeded_is_not_run_twice(self) -> None:
        self.write(1)
        first = self.stage.prepare(ONE, NONE)
        assert first() == self.committables(b"1")
        self.sink.failing.add("stage")
        assert first() == self.committables(b"1")

    def test_while_the_writer_wants_no_input_the_stage_wants_none_and_looks_again_in_a_moment(self) -> None:
        calls: list[Callable[[], None]] = []
        writer = Choosy(self.sink)
        self.sink.writer = lambda subtask, generation: writer  # type: ignore[method-assign]
        self.stage = SinkStage(WRITE, self.sink, 3, GENERATION)
        self.stage.open(SimpleNamespace(now_ms=lambda: 100, call_at=lambda at_ms, call: calls.append(call)))  # type: ignore[arg-type]
        self.write(1)
        assert (self.stage.wants_input, len(calls)) == (True, 0)
        writer.wants_input = False
        self.write(2)
        self.write(3)
        assert (self.stage.wants_input, len(calls)) == (False, 1)
        calls.pop()()
        assert (self.stage.wants_input, len(calls)) == (False, 1)
        writer.wants_input = True
        calls.pop()()
        assert (self.stage.wants_input, len(calls)) == (True, 0)

    def test_it_closes_its_writer(self) -> None:
        self.stage.close()
        assert self.sink.closed == 1
