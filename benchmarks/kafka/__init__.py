"""Kafka → keyed sum → Kafka, by Penstock and its peers, on one broker that shares the machine with them."""
