-- reads bids (auction, bidder, price, channel, url, date_time, extra); auctions (id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, extra)
SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, b.extra, a.item_name, a.description, a.initial_bid,
       a.reserve, a.date_time AS began, a.expires, a.seller, a.category, a.extra AS auction_extra
FROM bids AS b JOIN auctions AS a ON b.auction = a.id
WHERE a.category = 10
