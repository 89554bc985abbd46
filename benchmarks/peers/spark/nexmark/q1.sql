-- reads bids (auction, bidder, price, date_time, extra)
SELECT auction, bidder, CAST(0.908 AS DECIMAL(4, 3)) * price AS price, date_time, extra FROM bids
