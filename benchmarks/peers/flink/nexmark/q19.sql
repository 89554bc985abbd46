-- reads bids (auction, bidder, price, channel, url, date_time, extra)
SELECT auction, bidder, price, channel, url, date_time, extra, number
FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS number FROM bids)
WHERE number <= 10
