-- reads bids (auction, bidder, price, date_time)
SELECT auction, bidder, price, date_time, side_value(MOD(auction, 10000)) AS `value` FROM bids
