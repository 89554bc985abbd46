"""The rescale matrix: every topology that has lost records elsewhere, from every parallelism to every other."""

from __future__ import annotations

from collections.abc import Iterator

_BOTH_WAYS = {
    "pipeline": ((1, 2), (2, 3), (3, 7), (4, 8), (20, 21)),
    "union": ((1, 2), (2, 3), (3, 7)),
    "multi_input": ((1, 2), (2, 3), (3, 7)),
    "keyed_different": ((12, 7), (5, 3)),
    "broadcast": ((5, 2), (5, 3)),
    "keyed_broadcast": ((7, 2), (5, 3)),
    "ordered": ((2, 3), (4, 1)),
    "tumbling": ((1, 2), (3, 7)),
    "sessions": ((1, 2), (3, 7)),
    "sliding": ((1, 3),),
    "timers": ((2, 3), (4, 1)),
    "event_timers": ((2, 3), (4, 1)),
    "async_ordered": ((2, 3), (4, 1)),
    "async_unordered": ((1, 3),),
    "two_sinks": ((1, 3),),
}
_UNCHANGED = {"pipeline": (1, 3, 7, 20)}


def matrix() -> Iterator[str]:
    """The names of its scenarios; each with a busy source, and with one that is almost idle."""
    for topology, pairs in _BOTH_WAYS.items():
        for one, other in pairs:
            yield from _named(topology, one, other)
            yield from _named(topology, other, one)
        for same in _UNCHANGED.get(topology, ()):
            yield from _named(topology, same, same)


def _named(topology: str, old: int, new: int) -> Iterator[str]:
    yield f"{topology}_{old}_{new}"
    yield f"{topology}_{old}_{new}_idle"
