-- reads bids (bidder)
SELECT bidder, COUNT(*) AS bids
FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(arrived), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end
