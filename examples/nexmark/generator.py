"""The events of Nexmark, in columns: each event is a function of its number and of a seed.

Of 50 events one is a person, three are auctions and 46 are bids. A field is drawn from a hash of the number and the
field, in integers only, so that a replay, another parallelism and another language make the same events: Java has
the same functions in `benchmarks/peers/flink/Nexmark.java`. Only the columns that a query reads are made.

The number of an event counts all events. The generator is asked for the k-th to l-th person, auction or bid.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from examples.nexmark import words

Numbers: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.uint64]

GROUP = 50
"""Events come in groups: a person, then auctions, then bids."""
AUCTIONS, BIDS = 3, 46
FIRST_ID = 1_000
"""The first person and the first auction have this id."""
IN_FLIGHT = 100
"""Bids are for one of the newest auctions, this many."""
ACTIVE_PEOPLE = 1_000
"""Bidders and sellers are among the newest people, this many."""
HOT_EVERY = 100
"""One of this many auctions, or people, is hot: half of the bids, or three quarters of a role, are theirs."""
CATEGORIES = 5
FIRST_CATEGORY = 10

_MANTISSAS = (1000, 1259, 1585, 1995, 2512, 3162, 3981, 5012, 6310, 7943)
"""The powers of ten from 0 to 0.9, times 1000."""
_PRICES = np.array([m * 10**decade for decade in range(6) for m in _MANTISSAS] + [10**9])
"""Ten times the price in cents at 61 points whose logarithms are equally far apart."""
_PRICE_STEPS = np.diff(_PRICES)


@dataclass(frozen=True, slots=True)
class Shape:
    """What all events depend on besides their numbers."""

    seed: int = 1
    events_per_second: int = 100_000
    """Events in a second of event time, not of the clock."""
    begin_ms: int = 1_767_225_600_000
    """The time of the first event: the beginning of 2026, in UTC."""

    @property
    def auction_ms(self) -> int:
        """The mean time for which an auction is open, in which as many others begin as are in flight."""
        return max(1, IN_FLIGHT * GROUP // AUCTIONS * 1000 // self.events_per_second)

    def salt(self, field: int) -> int:
        """The number that tells the hashes of one field from those of others."""
        return words.mixed(self.seed * 1_000_003 + field)


def counts(events: int) -> dict[str, int]:
    """The people, auctions and bids among the first `events` events."""
    groups, rest = divmod(events, GROUP)
    return {
        "people": groups + (rest > 0),
        "auctions": AUCTIONS * groups + min(max(rest - 1, 0), AUCTIONS),
        "bids": BIDS * groups + max(rest - 1 - AUCTIONS, 0),
    }


class _Rows:
    """Some consecutive rows of one kind: their groups and the numbers of their events."""

    def __init__(self, shape: Shape, start: int, count: int, of_group: int, behind: int) -> None:
        self.shape = shape
        self.index = np.arange(start, start + count, dtype=np.int64)
        first, last = start // of_group, (start + count - 1) // of_group
        self.groups = np.arange(first, last + 1, dtype=np.int64)
        repeats = np.full(len(self.groups), of_group)
        repeats[-1] -= (last + 1) * of_group - (start + count)
        repeats[0] -= start - first * of_group
        self._repeats = repeats
        # The k-th of its kind is this far behind k: the others of its group and of those before.
        self.numbers = self.index + self.spread(self.groups * (GROUP - of_group) + behind)

    def spread(self, values: Numbers) -> Numbers:
        """Values of the groups as values of the rows. Most fields depend on the group, of which there are few."""
        return np.repeat(values, self._repeats)

    def hashes(self, field: int) -> Bits:
        bits: Bits = self.numbers.astype(np.uint64)
        bits *= np.uint64(0xA0761D6478BD642F)
        bits += np.uint64(self.shape.salt(field))
        bits ^= bits >> np.uint64(32)
        bits *= np.uint64(0xD6E8FEB86659FD93)
        bits ^= bits >> np.uint64(29)
        bits *= np.uint64(0x9E3779B97F4A7C15)
        bits ^= bits >> np.uint64(32)
        return bits

    def times(self) -> Numbers:
        rate = self.shape.events_per_second
        since = self.numbers // (rate // 1000) if rate % 1000 == 0 else self.numbers * 1000 // rate
        return since + self.shape.begin_ms


def _below(bits: Bits, bound: int | Numbers) -> Numbers:
    """A number from 0 to below `bound`, from the 30 bits behind the highest two: a product and a shift, no division."""
    drawn = bits << np.uint64(2) >> np.uint64(34)
    drawn *= np.asarray(bound, dtype=np.uint64)
    drawn >>= np.uint64(30)
    return drawn.view(np.int64)


def _top(bits: Bits) -> Bits:
    """The highest two bits, which decide whether the row is a hot one."""
    return bits >> np.uint64(62)


def _prices(rows: _Rows, field: int) -> Numbers:
    """Cents from 100 to 100,000,000 whose logarithms are spread evenly."""
    bits = rows.hashes(field)
    point = _below(bits, 60)
    fraction = (bits & np.uint64(0xFFFF)).view(np.int64)
    return (_PRICES[point] + (_PRICE_STEPS[point] * fraction >> 16)) // 10


def _person(rows: _Rows, field: int, hot: Numbers) -> Numbers:
    """The id of a person: in three of four cases the hot one of the group."""
    bits = rows.hashes(field)
    newest = rows.spread(rows.groups) - _below(bits, rows.spread(np.minimum(rows.groups + 1, ACTIVE_PEOPLE)))
    return np.where(_top(bits) > 0, rows.spread(hot), newest) + FIRST_ID


def _timestamps(values: Numbers) -> pa.Array:
    return pa.array(values).view(pa.timestamp("ms"))


@functools.cache
def _pool(make: Callable[..., list[str]], *arguments: int) -> pa.Array:
    return pa.array(make(*arguments))


def _texts(rows: _Rows, field: int, make: Callable[..., list[str]], *arguments: int) -> pa.Array:
    pool = _pool(make, *arguments)
    return pool.take(pa.array(_below(rows.hashes(field), len(pool))))


# --- people ---


def _places(part: int, rows: _Rows) -> pa.Array:
    pool = pa.array([place[part] for place in words.PLACES])
    return pool.take(pa.array(_below(rows.hashes(14), len(pool))))


_PERSON: dict[str, Callable[[_Rows], pa.Array]] = {
    "id": lambda rows: pa.array(rows.index + FIRST_ID),
    "name": lambda rows: _texts(rows, 11, words.names),
    "email_address": lambda rows: _texts(rows, 12, words.email_addresses),
    "credit_card": lambda rows: _texts(rows, 13, words.credit_cards),
    "city": functools.partial(_places, 0),
    "state": functools.partial(_places, 1),
    "date_time": lambda rows: _timestamps(rows.times()),
    "extra": lambda rows: _texts(rows, 15, words.fillers, 11, 90, 130),
}


# --- auctions ---


def _expiry(rows: _Rows) -> pa.Array:
    return _timestamps(rows.times() + 1 + _below(rows.hashes(24), 2 * rows.shape.auction_ms))


_AUCTION: dict[str, Callable[[_Rows], pa.Array]] = {
    "id": lambda rows: pa.array(rows.index + FIRST_ID),
    "item_name": lambda rows: _texts(rows, 21, words.items),
    "description": lambda rows: _texts(rows, 22, words.fillers, 21, 80, 120),
    "initial_bid": lambda rows: pa.array(_prices(rows, 23)),
    "reserve": lambda rows: pa.array(_prices(rows, 23) + _prices(rows, 25)),
    "date_time": lambda rows: _timestamps(rows.times()),
    "expires": _expiry,
    "seller": lambda rows: pa.array(_person(rows, 26, rows.groups // HOT_EVERY * HOT_EVERY)),
    "category": lambda rows: pa.array(FIRST_CATEGORY + _below(rows.hashes(27), CATEGORIES)),
    "extra": lambda rows: _texts(rows, 28, words.fillers, 28, 300, 340),
}


# --- bids ---


def _auction(rows: _Rows) -> pa.Array:
    last = AUCTIONS * rows.groups + AUCTIONS - 1
    bits = rows.hashes(31)
    newest = rows.spread(last) - _below(bits, rows.spread(np.minimum(last + 1, IN_FLIGHT)))
    return pa.array(np.where(_top(bits) > 1, rows.spread(last // HOT_EVERY * HOT_EVERY), newest) + FIRST_ID)


def _channel(make: Callable[[], list[str]], rows: _Rows) -> pa.Array:
    bits = rows.hashes(34)
    hot = len(words.HOT_CHANNELS)
    number = np.where(_top(bits) > 1, _below(bits, hot), hot + _below(bits, words.OTHER_CHANNELS))
    return _pool(make).take(pa.array(number))


_BID: dict[str, Callable[[_Rows], pa.Array]] = {
    "auction": _auction,
    # The person before the hot seller is the hot bidder.
    "bidder": lambda rows: pa.array(_person(rows, 32, np.maximum(rows.groups // HOT_EVERY * HOT_EVERY - 1, 0))),
    "price": lambda rows: pa.array(_prices(rows, 33)),
    "channel": functools.partial(_channel, words.channels),
    "url": functools.partial(_channel, words.urls),
    "date_time": lambda rows: _timestamps(rows.times()),
    "extra": lambda rows: _texts(rows, 35, words.fillers, 35, 8, 24),
}

_KINDS = {"people": (_PERSON, 1, 0), "auctions": (_AUCTION, AUCTIONS, 1), "bids": (_BID, BIDS, 1 + AUCTIONS)}

COLUMNS = {kind: tuple(fields) for kind, (fields, _, _) in _KINDS.items()}
"""The columns of each kind, in their order."""
IN_A_GROUP = {kind: of_group for kind, (_, of_group, _) in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class Maker:
    """The function that `GeneratorSource` takes: rows of one kind, with some of its columns."""

    shape: Shape
    kind: str
    columns: tuple[str, ...]

    def __call__(self, start: int, count: int) -> pa.RecordBatch:
        fields, of_group, behind = _KINDS[self.kind]
        rows = _Rows(self.shape, start, count, of_group, behind)
        return pa.record_batch({column: fields[column](rows) for column in self.columns})


def table(shape: Shape, kind: str, events: int, columns: Sequence[str] = ()) -> pa.Table:
    """All rows of a kind among the first events, for a judge that wants them at once."""
    make = Maker(shape, kind, tuple(columns) or COLUMNS[kind])
    return pa.Table.from_batches([make(0, counts(events)[kind])])
