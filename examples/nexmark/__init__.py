"""Nexmark: an auction house as a stream of people, auctions and bids, and 24 questions about it.

    python -m examples.nexmark q5

`generator.py` makes the events, each a function of its number. `events.py` offers them as streams. `queries/` answers
the questions, one function each, and is a tour of the API. `tests/nexmark` compares every answer with that of DuckDB,
and `make nexmark` measures them.
"""
