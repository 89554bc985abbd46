"""The events as streams of a pipeline: people, auctions and bids, each with the columns that a query reads."""

from __future__ import annotations

from examples.nexmark.generator import COLUMNS, GROUP, IN_A_GROUP, Maker, Shape, counts
from penstock import GeneratorSource, Pipeline, Source, Stream

DELAY = "4 s"
"""The watermark is this far behind the newest event."""

_BLOCK_GROUPS_MAX = 1024
_BLOCKS_OF_A_SPLIT = 32


class Events:
    """The first `count` events, or all of them if it is None, as fast as it goes or `rate` a second.

    The streams are cut into blocks of the same stretch of event time, so that they and their splits advance together.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        count: int | None = None,
        *,
        shape: Shape | None = None,
        splits: int = 2,
        rate: float | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.count = count
        self.shape = shape or Shape()
        self.splits = splits
        self.rate = rate

    def people(self, *columns: str) -> Stream:
        """Those who sell and bid: id, name, email_address, credit_card, city, state, date_time, extra."""
        return self._stream("people", columns)

    def auctions(self, *columns: str) -> Stream:
        """Items on offer.

        Columns: id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, extra.
        """
        return self._stream("auctions", columns)

    def bids(self, *columns: str) -> Stream:
        """Offers for an auction: auction, bidder, price, channel, url, date_time, extra."""
        return self._stream("bids", columns)

    def _stream(self, kind: str, columns: tuple[str, ...]) -> Stream:
        return self.pipeline.source(self._source(kind, columns), name=kind)

    def _source(self, kind: str, columns: tuple[str, ...]) -> Source:
        of_group = IN_A_GROUP[kind]
        return GeneratorSource(
            Maker(self.shape, kind, columns or COLUMNS[kind]),
            rows=None if self.count is None else counts(self.count)[kind],
            splits=self.splits,
            rows_per_second=None if self.rate is None else self.rate * of_group / GROUP,
            block_rows=of_group * self._block_groups(),
        )

    def _block_groups(self) -> int:
        if self.count is None:
            return _BLOCK_GROUPS_MAX
        return min(_BLOCK_GROUPS_MAX, max(1, self.count // GROUP // (self.splits * _BLOCKS_OF_A_SPLIT)))
