-- reads bids (bidder, date_time)
SELECT bidder, session_window.start AS window_start, COUNT(*) AS bids
FROM bids
GROUP BY bidder, session_window(date_time, '10 seconds')
