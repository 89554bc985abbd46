-- reads people (id, name, date_time); auctions (seller, date_time)
SELECT p.id, p.name, p.window.start AS began
FROM (SELECT id, name, window(date_time, '10 seconds') AS window FROM people GROUP BY id, name, window(date_time, '10 seconds')) AS p
JOIN (SELECT seller, window(date_time, '10 seconds') AS window FROM auctions GROUP BY seller, window(date_time, '10 seconds')) AS a
ON p.id = a.seller AND p.window = a.window
