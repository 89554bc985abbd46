"""The events of Nexmark: a function of their numbers, of the published shape, the same for all time and in Java."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.nexmark.events import Events
from examples.nexmark.generator import COLUMNS, GROUP, IN_A_GROUP, Maker, Shape, counts, table
from penstock import END_OF_SPLIT, Pipeline


def digest(rows: pa.Table) -> str:
    """Of the values as text, so that it does not depend on the layout."""
    times = [field.name for field in rows.schema if pa.types.is_timestamp(field.type)]
    for name in times:
        rows = rows.set_column(rows.schema.get_field_index(name), name, rows[name].cast(pa.int64()))
    text = "\n".join("|".join(map(str, row.values())) for row in rows.to_pylist())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


KNOWN = {"people": "ce7a7e335d91bd70", "auctions": "c3ea60ad974a1cb3", "bids": "b5d9339b277bb4a3"}


@pytest.mark.parametrize("kind", COLUMNS)
def test_the_first_events_are_known(kind: str) -> None:
    assert digest(table(Shape(), kind, 20_000)) == KNOWN[kind]


def test_some_events_are_known_by_their_values() -> None:
    columns = ("auction", "bidder", "price", "channel", "extra")
    bids = Maker(Shape(), "bids", columns)(1_000_000, 2).to_pylist()
    assert [tuple(bid.values()) for bid in bids] == [
        (66203, 22699, 7115934, "channel-2317", "fjpnnhtbq"),
        (66169, 22699, 357622, "search", "xvqofrwarspa"),
    ]


@given(st.sampled_from(sorted(COLUMNS)), st.integers(0, 10**12), st.integers(1, 200), st.integers(0, 199))
def test_an_event_does_not_depend_on_the_batch_that_it_comes_in(kind: str, start: int, count: int, cut: int) -> None:
    make = Maker(Shape(seed=3), kind, COLUMNS[kind])
    whole, cut = make(start, count), min(cut, count - 1)
    assert make(start + cut, count - cut).equals(whole.slice(cut))


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_does_not_depend_on_the_others_that_are_made(kind: str) -> None:
    whole = table(Shape(), kind, 5_000)
    for column in COLUMNS[kind]:
        assert table(Shape(), kind, 5_000, [column])[column] == whole[column]


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_others_are_bids() -> None:
    assert counts(GROUP) == IN_A_GROUP == {"people": 1, "auctions": 3, "bids": 46}
    for events in range(3 * GROUP):
        assert sum(counts(events).values()) == events


def test_the_published_shape() -> None:
    shape, events = Shape(), 500_000
    bids, auctions, people = (table(shape, kind, events) for kind in ("bids", "auctions", "people"))
    assert pc.min_max(bids["price"]).as_py()["min"] < 110
    assert pc.min_max(bids["price"]).as_py()["max"] > 90_000_000
    decades = np.histogram(np.log10(bids["price"].to_numpy()), bins=6, range=(2, 8))[0] / bids.num_rows
    assert np.allclose(decades, 1 / 6, atol=0.01)
    assert sorted(pc.unique(auctions["category"]).to_pylist()) == [10, 11, 12, 13, 14]
    for rows, near in ((people, 200), (auctions, 500), (bids, 120)):
        assert 0.8 * near < rows.nbytes / rows.num_rows < 1.2 * near
    # Half of the bids are for hot auctions, three quarters by hot bidders, and as many auctions by hot sellers.
    columns = ((bids["auction"], 0), (bids["bidder"], 99), (auctions["seller"], 0))
    hot = [np.mean(column.to_numpy() % 100 == rest) for column, rest in columns]
    assert np.allclose(hot, (0.505, 0.7525, 0.7525), atol=0.02)
    # Nobody bids for an auction, and nobody sells, before they exist.
    at = dict(zip(auctions["id"].to_pylist(), auctions["date_time"].cast(pa.int64()).to_pylist(), strict=True))
    first = bids.slice(0, 20_000)
    times = first["date_time"].cast(pa.int64()).to_pylist()
    assert all(at[auction] <= time for auction, time in zip(first["auction"].to_pylist(), times, strict=True))


def test_event_time_goes_by_the_number_at_every_rate() -> None:
    for rate in (1, 3, 100, 999, 1_000, 100_000):
        times = table(Shape(events_per_second=rate, begin_ms=0), "people", 5_000, ["date_time"])["date_time"]
        numbers = np.arange(0, 5_000, GROUP)
        assert times.cast(pa.int64()).to_pylist() == (numbers * 1000 // rate).tolist()


def test_streams_and_splits_are_read_in_blocks_of_the_same_stretch_of_event_time() -> None:
    events = Events(Pipeline("p"), 200_000, splits=2)
    for kind in COLUMNS:
        getattr(events, kind)("date_time")
    ends = []
    for node in events.pipeline._nodes:
        assert node.source is not None
        for split in node.source.splits():
            batch = node.source.open(split, None).read(1 << 20)
            assert isinstance(batch, pa.RecordBatch) and batch is not END_OF_SPLIT
            ends.append((split, batch["date_time"][-1].cast(pa.int64()).as_py() - events.shape.begin_ms))
    # 62 groups are 3,100 events, which are 31 ms.
    assert {split: {end for each, end in ends if each == split} for split in ("0/2", "1/2")} == {
        "0/2": {30},
        "1/2": {61},
    }
