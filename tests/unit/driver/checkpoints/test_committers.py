"""Committers on real threads: one call at a time, and only of the newest generation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from penstock.connectors.sink import Committer
from penstock.driver.checkpoints.committers import Committers
from penstock.errors import PenstockError, StorageError, UserCodeError
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId
from penstock.protocol.commit import CommitPermit, ManifestDurable, decide_commit
from penstock.protocol.manifest import Committable, Manifest, PipelineShape, SubtaskReport
from tests.unit.mailbox.fake_ports import ManualClock

OUT, SIDE = OperatorName("out"), OperatorName("side")
HANG_S = 60.0


def permit(checkpoint: int, generation: int, *sinks: OperatorName) -> CommitPermit:
    committables = tuple(Committable(sink, 0, b"x") for sink in sinks or (OUT,))
    report = SubtaskReport(SubtaskId(OUT, 0), committables=committables)
    manifest = Manifest(CheckpointId(checkpoint), Generation(1), PipelineShape("p", 128), (report,))
    made = decide_commit(manifest, ManifestDurable(CheckpointId(checkpoint), Generation(1)), Generation(generation))
    assert made is not None
    return made


class Hanging(Committer):
    """Its first commit waits for `gate`. Notes what took effect, and whether two calls were ever inside."""

    def __init__(self) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        self.effects: list[int] = []
        self.inside = self.inside_max = 0

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        self.inside += 1
        self.inside_max = max(self.inside_max, self.inside)
        if not self.entered.is_set():
            self.entered.set()
            assert self.gate.wait(HANG_S)
        self.effects.append(int(checkpoint))
        self.inside -= 1


def in_thread(call: Callable[[], None]) -> tuple[threading.Thread, list[Exception]]:
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


def test_a_newer_generation_waits_for_the_call_that_is_under_way() -> None:
    # I6: else the older one takes effect beside it, or after it.
    sink = Hanging()
    committers = Committers({OUT: sink}, ManualClock(), commit_wait_ms=60_000)
    committers.admit(Generation(1))
    older, _ = in_thread(lambda: committers.publish(permit(2, 1)))
    assert sink.entered.wait(HANG_S)
    committers.admit(Generation(2))
    newer, errors = in_thread(lambda: [committers.publish(permit(number, 2)) for number in (2, 3, 4)] and None)
    newer.join(0.05)
    assert sink.effects == []
    sink.gate.set()
    older.join(HANG_S)
    newer.join(HANG_S)
    assert (sink.effects, sink.inside_max, errors) == ([2, 2, 3, 4], 1, [])


def test_a_call_of_an_older_generation_is_refused_when_its_turn_comes() -> None:
    sink, side = Hanging(), Hanging()
    side.entered.set()
    committers = Committers({OUT: sink, SIDE: side}, ManualClock(), commit_wait_ms=60_000)
    committers.admit(Generation(1))
    older, errors = in_thread(lambda: committers.publish(permit(2, 1, OUT, SIDE)))
    assert sink.entered.wait(HANG_S)
    queued, refused = in_thread(lambda: committers.publish(permit(3, 1)))
    committers.admit(Generation(2))
    # It does not even wait for the call that is under way.
    queued.join(HANG_S)
    sink.gate.set()
    older.join(HANG_S)
    assert (sink.effects, side.effects) == ([2], [])
    told = "sink '{}': commit of checkpoint {} by generation 1 is refused, because generation 2 has begun"
    assert [str(error) for error in refused] == [told.format(OUT, 3)]
    assert [str(error) for error in errors] == [told.format(SIDE, 2)]


def test_a_call_that_does_not_return_is_named_with_its_sink_and_duration_and_nothing_is_called_beside_it() -> None:
    sink, clock = Hanging(), ManualClock()
    committers = Committers({OUT: sink}, clock, commit_wait_ms=1, discard_wait_ms=1)
    in_thread(lambda: committers.publish(permit(2, 1)))
    assert sink.entered.wait(HANG_S)
    assert committers.under_way(1) is None
    clock.advance(35_000)
    stuck = "sink 'out': the commit of checkpoint 2 by generation 1 has not returned for 35 s"
    assert committers.under_way(35_000) == stuck
    committers.admit(Generation(2))
    with pytest.raises(PenstockError, match=f"{stuck}; the commit of checkpoint 2 by generation 2 has to wait for it"):
        committers.publish(permit(2, 2))
    with pytest.raises(PenstockError, match=f"{stuck}; the sweep of generation 2 has to wait for it"):
        committers.discard_uncommitted(Generation(2))
    assert (sink.effects, sink.inside_max) == ([], 1)
    sink.gate.set()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(SystemExit(1), UserCodeError), (ValueError("no"), UserCodeError), (StorageError("full"), StorageError)],
)
def test_a_turn_ends_however_the_call_ends(raised: BaseException, expected: type[Exception]) -> None:
    class Failing(Committer):
        error: BaseException | None = raised

        def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
            if self.error is not None:
                raise self.error

    failing = Failing()
    committers = Committers({OUT: failing}, ManualClock(), commit_wait_ms=1)
    with pytest.raises(expected):
        committers.publish(permit(2, 1))
    failing.error = None
    committers.publish(permit(2, 1))


def test_output_of_a_sink_that_is_gone_is_not_passed_over() -> None:
    with pytest.raises(PenstockError, match="checkpoint 2 has output of sink 'out' to publish, but this pipeline has"):
        Committers({}, ManualClock()).publish(permit(2, 1))
