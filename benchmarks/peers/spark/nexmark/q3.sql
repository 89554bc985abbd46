-- reads auctions (id, seller, category); people (id, name, city, state)
SELECT p.name, p.city, p.state, a.id
FROM auctions AS a JOIN people AS p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
