-- reads bids (auction, bidder, price, date_time); auctions (id, date_time, expires, seller, category)
SELECT category, AVG(CAST(price AS DOUBLE)) AS mean
FROM (
  SELECT a.id, a.category, MAX(b.price) AS price
  FROM auctions AS a JOIN bids AS b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
  GROUP BY a.id, a.category
)
GROUP BY category
