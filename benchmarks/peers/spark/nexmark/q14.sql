-- reads bids (auction, bidder, price, date_time, extra)
SELECT auction, bidder, CAST(0.908 AS DECIMAL(4, 3)) * price AS price, date_time, extra,
       CASE WHEN HOUR(date_time) >= 8 AND HOUR(date_time) <= 18 THEN 'day'
            WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN 'night' ELSE 'other' END AS time_of_day,
       LENGTH(extra) - LENGTH(REPLACE(extra, 'c', '')) AS c_count
FROM bids
WHERE CAST(0.908 AS DECIMAL(4, 3)) * price > 1000000 AND CAST(0.908 AS DECIMAL(4, 3)) * price < 50000000
