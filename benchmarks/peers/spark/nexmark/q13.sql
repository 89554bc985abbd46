-- reads bids (auction, bidder, price, date_time)
SELECT auction, bidder, price, date_time, value FROM bids JOIN side_table ON MOD(auction, 10000) = key
