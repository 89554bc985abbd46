-- reads bids (auction, bidder, price, date_time, extra)
SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bids
