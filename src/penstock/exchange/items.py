"""What waits in the queues of a channel: records, watermarks, latency markers, barriers, and the end."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import TypeAlias, TypeVar

import pyarrow as pa

from penstock.protocol.barrier import Barrier

T = TypeVar("T")


class BatchItem:
    """Records. `cost` is their price in credit, 0 for recovered ones, which no sender waits for.

    What has arrived knows since when it waits, and how many bytes waited on its channel then, itself included.
    """

    __slots__ = ("ahead", "batch", "cost", "is_rest", "since_us", "size")

    def __init__(
        self, batch: pa.RecordBatch, cost: int, size: int, since_us: int = 0, ahead: int = 0, is_rest: bool = False
    ) -> None:
        self.batch = batch
        self.cost = cost
        self.size = size
        self.since_us = since_us
        self.ahead = ahead
        self.is_rest = is_rest
        """Whether records of the batch have been consumed before."""


class WatermarkItem:
    __slots__ = ("watermark",)

    def __init__(self, watermark: int) -> None:
        self.watermark = watermark


class BarrierItem:
    """A barrier in its place among the records; `since_ms` is when it was queued here."""

    __slots__ = ("barrier", "since_ms")

    def __init__(self, barrier: Barrier, since_ms: int) -> None:
        self.barrier = barrier
        self.since_ms = since_ms


class MarkerItem:
    """A latency marker: keeps its place among the records, and is no part of any checkpoint."""

    __slots__ = ("emitted_ms", "source")

    def __init__(self, source: str, emitted_ms: int) -> None:
        self.source = source
        self.emitted_ms = emitted_ms


class EndItem:
    __slots__ = ()


Item: TypeAlias = BatchItem | WatermarkItem | MarkerItem | BarrierItem | EndItem
Captured: TypeAlias = BatchItem | WatermarkItem
"""What can be channel state. An end is not: whoever sent it is at its end after a restore too, and sends it again."""


def captured_bytes(items: list[Captured]) -> int:
    return sum(item.size for item in items if isinstance(item, BatchItem))


def append(waiting: MutableSequence[T], item: T) -> bool:
    """Queue an item. A watermark right behind an earlier one takes its place: that one says nothing any more.

    The older item itself is left as it is: a checkpoint may have captured it (I1). False for a marker that is dropped,
    because an older one of its source waits with no records in between: a channel that is not read stays bounded (I7).
    """
    last = waiting[-1] if waiting else None
    if isinstance(item, WatermarkItem) and isinstance(last, WatermarkItem) and last.watermark <= item.watermark:
        waiting[-1] = item
    elif isinstance(item, MarkerItem) and _has_marker(waiting, item.source):
        return False
    else:
        waiting.append(item)
    return True


def _has_marker(waiting: Sequence[object], source: str) -> bool:
    for item in reversed(waiting):
        if isinstance(item, MarkerItem):
            if item.source == source:
                return True
        elif not isinstance(item, WatermarkItem):
            return False
    return False
