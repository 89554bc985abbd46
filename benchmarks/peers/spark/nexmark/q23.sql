-- reads bids (auction, bidder, price); people (id, name, state); auctions (id, seller, item_name)
SELECT b.auction, b.bidder, b.price, p.name, p.state, a.id AS own_auction, a.item_name
FROM bids AS b JOIN people AS p ON b.bidder = p.id JOIN auctions AS a ON b.bidder = a.seller
