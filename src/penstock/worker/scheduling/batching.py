"""Natural batching: how much should wait in front of an operator that works in steps.

A call of a keyed function costs the same with few records as with many. So where calls cost more than records, more
records should wait: each key has more of them then, and fewer calls do the same work. Where records cost more than
calls, less may wait, and checkpoints under backpressure are smaller. Nobody waits for records to come: with nothing
in the queue, a record is processed at once.

Bounded twice: by the bytes of a channel, and by the time that a hand may take (`batch_time_ms`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HandCost:
    """One hand: what it was, and what it cost."""

    rows: int
    calls: int
    size: int
    """In bytes."""
    us: int


def bytes_wanted(hand: HandCost, call_us: float, row_us: float, batch_us: int) -> int:
    """How many bytes the next hand should have, if a call costs `call_us` and a record `row_us` besides.

    A third of the time for calls is what it comes to, where the bounds allow it.
    """
    calls_us, rows_us = call_us * hand.calls, row_us * hand.rows
    # Twice as many records with as many calls, or half as many, at most: what the keys are like then is not known.
    wanted = hand.size * min(2.0, max(0.5, 2 * calls_us / max(rows_us, 1e-6)))
    return int(min(wanted, hand.size * batch_us / max(hand.us, 1)))
