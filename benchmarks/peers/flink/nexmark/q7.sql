-- reads bids (auction, bidder, price, date_time, extra)
SELECT b.auction, b.bidder, b.price, b.date_time, b.extra
FROM bids AS b JOIN (
  SELECT MAX(price) AS price, window_end AS ended
  FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
  GROUP BY window_start, window_end
) AS h ON b.price = h.price AND b.date_time BETWEEN h.ended - INTERVAL '10' SECOND AND h.ended
