-- reads bids (auction, bidder, price, channel, url)
SELECT auction, bidder, price, channel, SPLIT_PART(url, '/', 4) AS folder_1, SPLIT_PART(url, '/', 5) AS folder_2,
       SPLIT_PART(url, '/', 6) AS folder_3
FROM bids
