-- reads bids (auction, price, date_time)
-- updates
SELECT auction, CAST(date_time AS DATE) AS day,
       COUNT(*) AS total_bids,
       COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
       COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
       COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
       MIN(price) AS least, MAX(price) AS greatest, AVG(CAST(price AS DOUBLE)) AS mean, SUM(price) AS total
FROM bids
GROUP BY auction, CAST(date_time AS DATE)
