"""Every question of Nexmark as DuckDB is asked it, and how the two answers are compared."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass, replace

from examples.nexmark.generator import Shape

EVENTS = 10_000
_DAY_ENDS = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
SHAPE = Shape(
    events_per_second=100,
    # Midnight comes in the middle: there are questions about days.
    begin_ms=int((_DAY_ENDS - datetime.timedelta(seconds=45)).timestamp() * 1000),
)
_SLOW = replace(SHAPE, events_per_second=1, begin_ms=SHAPE.begin_ms - 5 * 3_600_000)
"""Nearly three hours, from the afternoon to the night."""


class Compared(enum.Enum):
    """What of the answers must be equal."""

    ROWS = "all rows, in any order, less those that a changelog has taken back"
    LAST = "the last row of each key"
    TOTAL = "the sum of the last column"


@dataclass(frozen=True, slots=True)
class Question:
    """What DuckDB is asked. The columns of its answer are those that are compared."""

    sql: str
    compared: Compared = Compared.ROWS
    key: tuple[str, ...] = ()
    """The columns of the key, where the last row of each key counts."""
    shape: Shape = SHAPE
    events: int = EVENTS
    is_part: bool = False
    """Whether DuckDB answers for some of the keys only, because for others there are several right answers."""


_OFFERS = """
    SELECT bids.*, auctions.seller, auctions.category, auctions.expires
    FROM bids JOIN auctions ON bids.auction = auctions.id
    WHERE bids.date_time BETWEEN auctions.date_time AND auctions.expires
"""
_RANKS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
_BIDS = "count(*) AS total_bids, " + ", ".join(
    f"count(*) FILTER (WHERE {chosen}) AS {rank}_bids" for rank, chosen in _RANKS.items()
)
_DISTINCT = ", ".join(
    f"count(DISTINCT {column}) FILTER (WHERE {chosen}) AS {rank}_{column}s"
    for column in ("bidder", "auction")
    for rank, chosen in {"total": "true", **_RANKS}.items()
)

QUESTIONS: dict[str, Question] = {
    "q0": Question("SELECT * FROM bids"),
    "q1": Question(
        "SELECT auction, bidder, price::DECIMAL(15, 0) * 0.908::DECIMAL(4, 3) AS price, date_time, extra FROM bids"
    ),
    "q2": Question("SELECT auction, price FROM bids WHERE auction % 123 = 0"),
    "q3": Question(
        """
        SELECT name, city, state, auctions.id FROM auctions JOIN people ON auctions.seller = people.id
        WHERE category = 10 AND state IN ('OR', 'ID', 'CA')
        """
    ),
    "q4": Question(
        f"""
        SELECT category, sum(price)::DOUBLE / count(*) AS mean
        FROM (SELECT auction, category, max(price) AS price FROM ({_OFFERS}) GROUP BY ALL) GROUP BY category
        """,
        Compared.LAST,
        ("category",),
    ),
    "q5": Question(
        """
        WITH counts AS (
            SELECT auction, (epoch_ms(date_time) // 2000 + 1 + number) * 2000 AS window_end, count(*) AS bids
            FROM bids, range(5) AS ends(number) GROUP BY ALL
        )
        SELECT auction, bids FROM counts QUALIFY bids = max(bids) OVER (PARTITION BY window_end)
        """
    ),
    "q6": Question(
        f"""
        WITH sold AS (
            SELECT auction, seller, expires, max(price) AS price,
                   row_number() OVER (PARTITION BY seller ORDER BY expires DESC) AS number
            FROM ({_OFFERS}) GROUP BY auction, seller, expires
        )
        SELECT seller, sum(price) FILTER (WHERE number <= 10)::DOUBLE / least(count(*), 10) AS mean
        FROM sold GROUP BY seller HAVING count(*) = count(DISTINCT expires)
        """,
        Compared.LAST,
        ("seller",),
        is_part=True,
    ),
    "q7": Question(
        """
        WITH highest AS (
            SELECT epoch_ms(date_time) // 10000 * 10000 AS began, max(price) AS price FROM bids GROUP BY began
        )
        SELECT auction, bidder, bids.price, date_time, extra FROM bids JOIN highest ON bids.price = highest.price
        WHERE epoch_ms(date_time) BETWEEN began AND began + 10000
        """
    ),
    "q8": Question(
        """
        SELECT DISTINCT people.id, name, make_timestamp(epoch_ms(people.date_time) // 10000 * 10000000) AS began
        FROM people JOIN auctions ON people.id = auctions.seller
        WHERE epoch_ms(people.date_time) // 10000 = epoch_ms(auctions.date_time) // 10000
        """
    ),
    "q9": Question(
        f"SELECT auction, max(price) AS price FROM ({_OFFERS}) GROUP BY auction", Compared.LAST, ("auction",)
    ),
    "q10": Question(
        """
        SELECT auction, bidder, price, date_time, extra, date_time::DATE AS day, strftime(date_time, '%H:%M') AS minute
        FROM bids
        """
    ),
    "q11": Question(
        """
        WITH begun AS (
            SELECT bidder, date_time, epoch_ms(date_time) AS ms,
                   coalesce(ms - lag(ms) OVER (PARTITION BY bidder ORDER BY ms) > 10000, true) AS is_new
            FROM bids
        ), numbered AS (
            SELECT bidder, date_time,
                   sum(is_new::INT) OVER (PARTITION BY bidder ORDER BY date_time RANGE UNBOUNDED PRECEDING) AS number
            FROM begun
        )
        SELECT bidder, min(date_time) AS window_start, count(*) AS bids FROM numbered GROUP BY bidder, number
        """
    ),
    "q12": Question("SELECT count(*) AS bids FROM bids", Compared.TOTAL),
    "q13": Question(
        """
        SELECT auction, bidder, price, date_time, value FROM bids JOIN side_table ON auction % 10000 = side_table.key
        """
    ),
    "q14": Question(
        """
        SELECT auction, bidder, price::DECIMAL(15, 0) * 0.908::DECIMAL(4, 3) AS price, date_time, extra,
               CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'day'
                    WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'night' ELSE 'other' END AS time_of_day,
               length(extra) - length(replace(extra, 'c', '')) AS c_count
        FROM bids WHERE price * 0.908 > 1000000 AND price * 0.908 < 50000000
        """,
        shape=_SLOW,
    ),
    "q15": Question(
        f"SELECT date_time::DATE AS day, {_BIDS}, {_DISTINCT} FROM bids GROUP BY day", Compared.LAST, ("day",)
    ),
    "q16": Question(
        f"""
        SELECT channel, date_time::DATE AS day, max(strftime(date_time, '%H:%M')) AS minute, {_BIDS}, {_DISTINCT}
        FROM bids GROUP BY channel, day
        """,
        Compared.LAST,
        ("channel", "day"),
    ),
    "q17": Question(
        f"""
        SELECT auction, date_time::DATE AS day, {_BIDS}, min(price) AS least, max(price) AS greatest,
               sum(price)::DOUBLE / count(*) AS mean, sum(price) AS total
        FROM bids GROUP BY auction, day
        """,
        Compared.LAST,
        ("auction", "day"),
    ),
    "q18": Question("SELECT bidder, auction, max(date_time) AS date_time FROM bids GROUP BY bidder, auction"),
    "q19": Question(
        """
        SELECT auction, price FROM bids
        QUALIFY row_number() OVER (PARTITION BY auction ORDER BY price DESC) <= 10
        """
    ),
    "q20": Question(
        """
        SELECT bids.*, item_name, description, initial_bid, reserve, auctions.date_time AS began, expires, seller,
               category, auctions.extra AS auction_extra
        FROM bids JOIN auctions ON bids.auction = auctions.id WHERE category = 10
        """
    ),
    "q21": Question(
        """
        SELECT auction, bidder, price, channel, CASE channel WHEN 'search' THEN '0' WHEN 'social' THEN '1'
               WHEN 'letter' THEN '2' WHEN 'radio' THEN '3' ELSE regexp_extract(url, '[?&]channel_id=([^&]*)', 1) END
               AS channel_id
        FROM bids WHERE channel IN ('search', 'social', 'letter', 'radio') OR regexp_matches(url, '[?&]channel_id=')
        """
    ),
    "q22": Question(
        """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS folder_1,
               split_part(url, '/', 5) AS folder_2, split_part(url, '/', 6) AS folder_3
        FROM bids
        """
    ),
    "q23": Question(
        """
        SELECT auction, bidder, price, name, state, auctions.id AS own_auction, item_name
        FROM bids JOIN people ON bidder = people.id JOIN auctions ON bidder = seller
        """,
        # Of the first people one is the hot seller and the hot bidder: every bid meets most of the auctions.
        events=1_000,
    ),
}
