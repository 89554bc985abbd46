"""Where to begin and where to stop: texts, times and numbers of the user become offsets of partitions.

The driver settles both once, when the pipeline is sent to the workers: a restart before the first checkpoint must
begin at the same records. A partition that appears later begins at its first record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from penstock.connectors.kafka.client import ANSWER_SECONDS, kafka
from penstock.errors import PipelineError

Bound: TypeAlias = str | int | datetime | Mapping[Any, int]

BEGINNING = -2
"""Stands for the first record that a partition still has, as in Kafka itself."""


def split_of(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def partition_of(split: str) -> tuple[str, int]:
    topic, _, partition = split.rpartition("/")
    return topic, int(partition)


def checked(name: str, bound: Bound | None, words: Sequence[str], topics: Sequence[str]) -> Bound | None:
    """The bound in one of three forms: a word, a time in ms, or offsets by split. Raises `PipelineError`."""
    if bound is None or bound in words:
        return bound
    if isinstance(bound, datetime):
        if bound.tzinfo is None:
            raise PipelineError(f"KafkaSource: {name} is {bound}, without a time zone: give it one, such as tzinfo=UTC")
        return int(bound.timestamp() * 1000)
    if isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0:
        return bound
    if isinstance(bound, Mapping):
        return {_split_named(name, key, topics): _offset(name, value) for key, value in bound.items()}
    if isinstance(bound, str):
        try:
            found = datetime.fromisoformat(bound)
        except ValueError:
            pass
        else:
            return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    allowed = ", ".join(repr(word) for word in words)
    raise PipelineError(
        f"KafkaSource: {name} is {bound!r}: it must be {allowed}, a time (datetime, ISO text, or milliseconds since "
        f"1970), or a mapping of partitions to offsets such as {{0: 17}}"
    )


def _split_named(name: str, key: Any, topics: Sequence[str]) -> str:
    if isinstance(key, int) and not isinstance(key, bool):
        if len(topics) != 1:
            raise PipelineError(
                f"KafkaSource: {name} names partition {key} and there is more than one topic: write 'topic/{key}'"
            )
        return split_of(topics[0], key)
    if isinstance(key, tuple) and len(key) == 2:
        return split_of(str(key[0]), int(key[1]))
    if isinstance(key, str) and key.rpartition("/")[2].isdigit():
        return key
    raise PipelineError(f"KafkaSource: {name} has the key {key!r}: it must be a partition, or 'topic/partition'")


def _offset(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise PipelineError(f"KafkaSource: {name} has the offset {value!r}: it must be a whole number from 0")
    return value


def resolved(name: str, consumer: Any, bound: Bound | None, splits: Sequence[str]) -> dict[str, int]:
    """The bound as an offset for each split; splits that it does not name are left out."""
    if bound is None or bound == "earliest":
        return {}
    if isinstance(bound, Mapping):
        unknown = sorted(set(bound) - set(splits))
        if unknown:
            raise PipelineError(f"KafkaSource: {name} names '{unknown[0]}'; the partitions are {', '.join(splits)}")
        return dict(bound)
    if bound == "latest":
        return {split: high_of(consumer, split) for split in splits}
    return _at_time(consumer, int(bound), splits)  # type: ignore[arg-type]


def watermarks_of(consumer: Any, split: str) -> tuple[int, int]:
    """The first offset that a partition still has, and the one behind its last."""
    low, high = consumer.get_watermark_offsets(kafka().TopicPartition(*partition_of(split)), timeout=ANSWER_SECONDS)
    return int(low), int(high)


def known_end(consumer: Any, split: str) -> int | None:
    """The end of a partition as the last answer of its broker had it, without another request; None if not known."""
    _, high = consumer.get_watermark_offsets(kafka().TopicPartition(*partition_of(split)), cached=True)
    return int(high) if high >= 0 else None


def high_of(consumer: Any, split: str) -> int:
    return watermarks_of(consumer, split)[1]


def _at_time(consumer: Any, at_ms: int, splits: Iterable[str]) -> dict[str, int]:
    asked = [kafka().TopicPartition(*partition_of(split), at_ms) for split in splits]
    found = {}
    for answer in consumer.offsets_for_times(asked, timeout=ANSWER_SECONDS) if asked else []:
        split = split_of(answer.topic, answer.partition)
        # No record is that young: begin, or stop, behind the last one.
        found[split] = answer.offset if answer.offset >= 0 else high_of(consumer, split)
    return found
