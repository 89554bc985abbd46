-- reads bids (auction, bidder, price, date_time); auctions (id, date_time, expires, seller, category)
SELECT auction, bidder, price, date_time, began, expires, seller, category
FROM (
  SELECT b.auction, b.bidder, b.price, b.date_time, a.date_time AS began, a.expires, a.seller, a.category,
         ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time ASC) AS number
  FROM auctions AS a JOIN bids AS b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
)
WHERE number <= 1
