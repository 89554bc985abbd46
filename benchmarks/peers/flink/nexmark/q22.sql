-- reads bids (auction, bidder, price, channel, url)
SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS folder_1, SPLIT_INDEX(url, '/', 4) AS folder_2,
       SPLIT_INDEX(url, '/', 5) AS folder_3
FROM bids
