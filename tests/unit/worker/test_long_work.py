"""Work that grows with the state: done in the background, or in steps with turns of the mailbox between them."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.mailbox.frames import AcknowledgeFrame, BatchFrame, DeclineFrame, EndedFrame, EndFrame, ReadyFrame
from penstock.operators.contract import Emit
from penstock.protocol.declines import DeclineReason
from tests.unit.mailbox.fake_ports import LEFT, MAP, RIGHT, WRITE, Bench, Seen, barrier, join, rows, values

STEPS = 5


class Thorough(Seen):
    """Does something before the first record and after the last one, in steps that each take a slice.

    It emits its state at the end, batch by batch.
    """

    bench: Bench

    def on_restored(self, emit: Emit) -> Iterator[None]:
        for step in range(STEPS):
            self._call("restoring", step)
            self.bench.clock.advance(10)
            yield
        self._call("on_restored", values(self.state.get()))

    def on_end(self, emit: Emit) -> Iterator[None]:
        while self.state.get():
            first, *rest = self.state.get()
            emit(first)
            self.state.put(rest)
            self.bench.clock.advance(10)
            yield


def bench_of(seen: Thorough, **options: object) -> Bench:
    seen.bench = Bench(join(seen), **options)  # type: ignore[arg-type]
    return seen.bench


def with_state(batches: int) -> Bench:
    """A worker whose operator has so many batches in its state, at the end of its input."""
    bench = bench_of(Thorough()).started()
    bench.work()
    for number in range(batches):
        bench.batch(LEFT, number)
        bench.work()
    bench.end(LEFT)
    bench.end(RIGHT)
    return bench


def test_state_is_put_in_place_in_the_background_and_not_by_the_mailbox() -> None:
    first = Bench(join(Seen())).started()
    first.batch(LEFT, 1, 2, 3)
    first.work()
    first.trigger(barrier(1))
    for sender in (LEFT, RIGHT):
        first.barrier(sender, barrier(1))
    seen = Seen()
    again = Bench(join(seen), store=first.store, manifest=first.manifest(1))
    again.worker.start()
    ((work, done),) = again.background.jobs
    outcome = work()
    assert values(seen.state.get()) == [1, 2, 3]
    assert not again.subtask.is_restored
    done(outcome)
    assert values(seen.state.get()) == [1, 2, 3], "and once only"
    assert again.subtask.is_restored


def test_the_mailbox_has_its_turn_while_operators_make_themselves_ready() -> None:
    seen = Thorough()
    bench = bench_of(seen).started()
    bench.batch(LEFT, 1)
    for step in range(1, STEPS):
        assert [detail for what, detail in seen.log if what == "restoring"] == list(range(step))
        assert (seen.processed, bench.transport.of(ReadyFrame)) == ([], [])
        assert bench.worker.work()
    bench.work()
    assert len(bench.transport.of(ReadyFrame)) == 1
    assert seen.log.index(("on_restored", [])) < seen.log.index(("process", [1]))


def test_a_checkpoint_that_comes_before_they_are_ready_is_declined() -> None:
    bench = bench_of(Thorough()).started()
    bench.trigger(barrier(1))
    (declined,) = bench.transport.take(DeclineFrame)
    assert declined.reason is DeclineReason.SUBTASK_NOT_READY
    bench.work()
    bench.trigger(barrier(2))
    for sender in (LEFT, RIGHT):
        bench.barrier(sender, barrier(2))
    assert [frame.checkpoint for frame in bench.acknowledged()] == [2]


def test_a_small_amount_of_it_is_done_at_once() -> None:
    bench = Bench(join(Seen())).started()
    assert len(bench.transport.of(ReadyFrame)) == 1, "without a slice of work"


def test_the_end_is_passed_on_when_all_is_emitted_and_the_mailbox_has_its_turn_before() -> None:
    bench = with_state(4)
    bench.transport.sent.clear()
    for emitted in range(1, 5):
        while len(bench.transport.of(BatchFrame)) < emitted:
            assert bench.worker.work()
        assert len(bench.transport.of(BatchFrame)) == emitted
        assert bench.transport.of(EndFrame) == []
    bench.work()
    sent = [frame for _, frame in bench.transport.sent if isinstance(frame, BatchFrame | EndFrame)]
    assert [type(frame) for frame in sent] == [BatchFrame] * 4 + [EndFrame]
    assert len(bench.transport.of(EndedFrame)) == 1


def test_a_checkpoint_among_its_last_steps_holds_what_was_not_emitted() -> None:
    bench = with_state(4)
    bench.transport.sent.clear()
    while len(bench.transport.of(BatchFrame)) < 2:
        assert bench.worker.work()
    bench.trigger(barrier(1))
    manifest = bench.manifest(1)
    assert len(bench.transport.of(AcknowledgeFrame)) == 1
    bench.work()
    again = bench_of(Thorough(), store=bench.store, manifest=manifest).started()
    again.end(LEFT)
    again.end(RIGHT)
    again.work()
    assert values([frame.batch for frame in again.transport.of(BatchFrame)]) == [2, 3]


def test_what_is_emitted_at_the_end_waits_for_room_on_the_outputs() -> None:
    bench = bench_of(Thorough(), credit_limit_bytes=64, output_bytes_max=64).started()
    bench.work()
    for number in range(20):
        bench.subtask.chain.contexts[0].list_state("seen").put(
            [*bench.subtask.chain.contexts[0].list_state("seen").get(), rows(number)]
        )
    bench.end(LEFT)
    bench.end(RIGHT)
    bench.work()
    assert bench.subtask.is_backpressured
    output = bench.subtask.outputs[bench.channel(MAP, WRITE)]
    assert output.queued_bytes <= 64
