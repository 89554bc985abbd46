"""Kafka: a source that reads topics. Needs `pip install penstock[kafka]`."""

from penstock.connectors.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
