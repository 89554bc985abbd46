"""Kafka: a source that reads topics, and a sink that writes them exactly once. Needs `pip install penstock[kafka]`."""

from penstock.connectors.kafka.registry import SchemaRegistry
from penstock.connectors.kafka.sink import KafkaSink
from penstock.connectors.kafka.source import KafkaSource

__all__ = ["KafkaSink", "KafkaSource", "SchemaRegistry"]
