"""The questions of Nexmark, measured on local Spark, beside Flink SQL on the same events."""
