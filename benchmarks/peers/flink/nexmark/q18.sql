-- reads bids (auction, bidder, price, channel, url, date_time, extra)
SELECT bidder, auction, price, channel, url, date_time, extra
FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS number FROM bids)
WHERE number <= 1
