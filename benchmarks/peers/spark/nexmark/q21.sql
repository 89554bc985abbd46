-- reads bids (auction, bidder, price, channel, url)
SELECT auction, bidder, price, channel,
       CASE channel WHEN 'search' THEN '0' WHEN 'social' THEN '1' WHEN 'letter' THEN '2' WHEN 'radio' THEN '3'
            ELSE REGEXP_EXTRACT(url, '[?&]channel_id=([^&]*)', 1) END AS channel_id
FROM bids
WHERE REGEXP_EXTRACT(url, '[?&]channel_id=([^&]*)', 1) <> '' OR channel IN ('search', 'social', 'letter', 'radio')
