"""Chaos on real Spark: random kills for as long as one likes."""
