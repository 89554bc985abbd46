"""Attempts: an attempt owns the directory (takeover), has threads and a store, and its workers give signs of life."""
