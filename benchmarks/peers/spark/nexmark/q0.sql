-- reads bids (auction, bidder, price, channel, url, date_time, extra)
SELECT auction, bidder, price, channel, url, date_time, extra FROM bids
