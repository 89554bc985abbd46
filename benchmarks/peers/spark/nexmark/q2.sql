-- reads bids (auction, price)
SELECT auction, price FROM bids WHERE MOD(auction, 123) = 0
