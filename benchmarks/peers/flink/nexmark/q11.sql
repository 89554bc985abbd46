-- reads bids (bidder, date_time)
SELECT bidder, window_start, COUNT(*) AS bids
FROM TABLE(SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end
