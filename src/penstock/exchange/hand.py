"""Records in hand: taken off several channels, and worked off by one operator in an order of its own.

To everybody else they are still at the front of their channels. Their price in credit is given back as they are done.
`put_back` makes true what is only said otherwise: records that are not done go back to the front of their queues, in
their order (I2), with the rest of their price. From then on captures, alignment and bounds see them (I1, I7).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.columnar.gather import take_rows
from penstock.exchange.input_channel import InputChannel
from penstock.exchange.items import BatchItem
from penstock.operators.steps import Steps

Counts = npt.NDArray[np.int64]


class Hand:
    """The batches of one hand, one after the other as they were joined, and the work on them."""

    __slots__ = (
        "_done",
        "_item_of",
        "_paid",
        "_prices",
        "_rows",
        "_seen",
        "channels",
        "open_us",
        "rows_open",
        "steps",
        "taken",
        "took_us",
    )

    def __init__(self, taken: list[tuple[InputChannel, BatchItem]], steps: Steps) -> None:
        self.taken = taken
        self.steps = steps
        self.took_us = 0
        """For how long it has been worked on."""
        self.rows_open = self.open_us = 0
        """Rows and time of calls that are not measured yet."""
        self.channels = list(dict.fromkeys(channel for channel, _ in taken))
        for channel, _ in taken:
            channel.in_hand += 1
        self._rows: Counts = np.array([item.batch.num_rows for _, item in taken], dtype=np.int64)
        self._prices: Counts = np.array([item.cost for _, item in taken], dtype=np.int64)
        self._paid: Counts = np.zeros(len(taken), dtype=np.int64)
        self._done: Counts = np.zeros(len(taken), dtype=np.int64)
        """Rows of each batch that are done."""
        self._seen = 0
        self._item_of: Counts | None = None
        """The batch that each row belongs to, in the order of the work."""

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(item.size for _, item in self.taken)

    def paid_since(self) -> Iterator[tuple[InputChannel, int]]:
        """The price of the rows that were done since the last call, by channel."""
        self._count()
        due = np.where(self._rows > 0, self._prices * self._done // np.maximum(self._rows, 1), self._prices)
        fresh, self._paid = due - self._paid, due
        by_channel: dict[InputChannel, int] = {}
        for number in np.flatnonzero(fresh).tolist():
            channel = self.taken[number][0]
            by_channel[channel] = by_channel.get(channel, 0) + int(fresh[number])
        yield from by_channel.items()

    def _count(self) -> None:
        if self._item_of is None:
            self._item_of = np.repeat(np.arange(len(self.taken)), self._rows)[self.steps.order]
        fresh = self._item_of[self._seen : self.steps.rows_done]
        self._done += np.bincount(fresh, minlength=len(self.taken))
        self._seen = self.steps.rows_done

    def finish(self) -> Iterator[tuple[InputChannel, BatchItem, int]]:
        """All is done: for each channel, the last of its batches and the price that is left of all."""
        last: dict[InputChannel, tuple[BatchItem, int]] = {}
        for (channel, item), left in zip(self.taken, (self._prices - self._paid).tolist(), strict=True):
            channel.in_hand -= 1
            last[channel] = item, left + (last[channel][1] if channel in last else 0)
        for channel, (item, left) in last.items():
            yield channel, item, left

    def put_back(self) -> int:
        """Put the rows that are not done back where they came from; returns how many there are.

        The price of those that are done must have been paid.
        """
        rest = np.sort(self.steps.order[self.steps.rows_done :])
        ends = np.cumsum(self._rows)
        cuts = np.searchsorted(rest, ends).tolist()
        for number in range(len(self.taken) - 1, -1, -1):
            channel, item = self.taken[number]
            channel.in_hand -= 1
            first = cuts[number - 1] if number else 0
            rows = rest[first : cuts[number]] - (ends[number] - self._rows[number])
            if len(rows):
                channel.put_back(self._rest_of(item, rows, int(self._paid[number])))
        return len(rest)

    def _rest_of(self, item: BatchItem, rows: Counts, paid: int) -> BatchItem:
        if len(rows) == item.batch.num_rows:
            return item if not paid else _repriced(item, item.cost - paid)
        size = item.size * len(rows) // item.batch.num_rows
        return BatchItem(take_rows(item.batch, rows), item.cost - paid, size, item.since_us, item.ahead, True)


def _repriced(item: BatchItem, cost: int) -> BatchItem:
    return BatchItem(item.batch, cost, item.size, item.since_us, item.ahead, item.is_rest)
