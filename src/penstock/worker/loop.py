"""The loop around a mailbox: frames, results of background work, timers, and then a little work."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.exchange.zmq_transport import ZmqTransport
from penstock.mailbox.frames import Frame
from penstock.mailbox.ports import Clock
from penstock.mailbox.threads import Mail
from penstock.worker.worker import Worker

_SLICES = 16
"""Number of short slices before the inbox is looked at again."""


def run_worker(
    worker: Worker,
    transport: ZmqTransport,
    mail: Mail,
    clock: Clock,
    early: Sequence[Frame] = (),
) -> None:
    """Run a worker to its end. Blocks this thread, which is the worker's mailbox.

    `early` are frames that arrived before the worker was made; they come before everything else.
    """
    worker.start()
    for frame in early:
        worker.deliver(frame)
    while not worker.has_stopped:
        try:
            for frame in transport.receive():
                worker.deliver(frame)
            # A barrier to a subtask of this worker goes on at once, and not a slice of work later.
            for frame in transport.receive_own():
                worker.deliver(frame)
        except PenstockError as error:
            worker.fail(error)
        mail.deliver()
        worker.fire_timers()
        if not _work(worker, clock) and not mail and not worker.has_stopped:
            transport.wait(_sleep_ms(worker.next_timer_at_ms, clock))


def _work(worker: Worker, clock: Clock) -> bool:
    until_us = clock.now_us() + worker.turn_us
    for _ in range(_SLICES):
        if not worker.work():
            return worker.can_work
        if clock.now_us() >= until_us:
            return True
    return True


def _sleep_ms(timer_at_ms: int | None, clock: Clock) -> int:
    """Until the next timer, and never without a limit: a lost wake-up call must not hang a worker."""
    return 1000 if timer_at_ms is None else max(0, min(1000, timer_at_ms - clock.now_ms()))
