"""What source and sink share: the client library, its settings, and its errors in words that name the cure.

The client is imported when it is needed: a pipeline without Kafka does not need the package.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.errors import PenstockError, PipelineError, StorageError

ANSWER_SECONDS = 10.0
"""Time limit of one question to the brokers. A wrong address fails after this time."""
_WARN_EVERY_SECONDS = 30.0
GROUP = "penstock"
"""The client wants a group, even if nothing is ever committed to it."""

_log = logging.getLogger("penstock")


def kafka() -> Any:
    """The module `confluent_kafka`. Raises `PipelineError` if it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise PipelineError(
            f"Kafka needs the package confluent-kafka ({error}): pip install 'penstock[kafka]', in the Python of the "
            f"driver and of the workers"
        ) from error
    return confluent_kafka


def require_servers(where: str, servers: str | Iterable[str]) -> str:
    joined = servers if isinstance(servers, str) else ",".join(servers)
    if not joined.strip():
        raise PipelineError(f"{where}: servers is empty: name at least one broker, such as servers='kafka:9092'")
    return joined


def require_choice(where: str, name: str, value: object, *choices: str) -> None:
    if value not in choices:
        raise PipelineError(f"{where}: {name} is {value!r}: it must be {' or '.join(map(repr, choices))}")


def require_free(where: str, options: Mapping[str, Any], reserved: Mapping[str, str]) -> None:
    """Options that would break positions or guarantees are refused, with the argument that stands for them."""
    for name, instead in reserved.items():
        if name in options:
            raise PipelineError(f"{where}: options may not set {name!r}: {instead}")


class Complaints:
    """The callback for errors of a client: remembers the last one, and warns of an outage now and then."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.last = ""
        self._warned_at = -_WARN_EVERY_SECONDS

    def __call__(self, error: Any) -> None:
        text = error.str() or str(error)
        # The last line of an outage says only that all brokers are down; the one before has the reason.
        if error.code() != kafka().KafkaError._ALL_BROKERS_DOWN or not self.last:
            self.last = text
        if time.monotonic() - self._warned_at >= _WARN_EVERY_SECONDS:
            self._warned_at = time.monotonic()
            _log.warning("%s: %s. The client tries again until the broker answers", self.where, self.last)


def unreachable(where: str, servers: str, error: Exception, complaints: Complaints) -> StorageError:
    reason = complaints.last or str(error)
    return StorageError(
        f"{where}: no broker of '{servers}' answered within {ANSWER_SECONDS:g} s: {reason}. Check servers=, that the "
        f"host can be reached from here, and security settings such as options={{'security.protocol': 'SASL_SSL'}}"
    )


def told(where: str, servers: str, error: Any, topic: str) -> PenstockError:
    """A `KafkaError` that concerns a topic, with the cure."""
    codes = kafka().KafkaError
    code = error.code()
    if code in {codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION}:
        return StorageError(
            f"{where}: topic '{topic}' does not exist on {servers}: create it, or correct the name; "
            "if it exists, grant this user Describe"
        )
    if code in {codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED, codes.GROUP_AUTHORIZATION_FAILED}:
        return StorageError(
            f"{where}: no permission for topic '{topic}' on {servers} ({error.str()}): grant this user Read and "
            f"Describe for a source, Write and Describe for a sink, and the transactional id for exactly-once"
        )
    return StorageError(f"{where}: topic '{topic}' on {servers}: {error.str()}")


def listed(where: str, servers: str, consumer: Any, complaints: Complaints, topic: str | None = None) -> dict[str, Any]:
    """The topics of a cluster by name, or one of them. Raises `StorageError` if no broker answers."""
    try:
        name = () if topic is None else (topic,)
        return dict(consumer.list_topics(*name, timeout=ANSWER_SECONDS).topics)
    except kafka().KafkaException as error:
        # The reason is told to a callback, and callbacks are called by `poll`.
        consumer.poll(0)
        raise unreachable(where, servers, error, complaints) from error


def partitions_of(where: str, servers: str, consumer: Any, complaints: Complaints, topic: str) -> list[int]:
    """The partitions of a topic. Raises `StorageError` if no topic has that name."""
    found = listed(where, servers, consumer, complaints, topic)[topic]
    if found.error is not None:
        close = similar(topic, listed(where, servers, consumer, complaints))
        raise StorageError(f"{told(where, servers, found.error, topic)}{close}")
    return list(found.partitions)


def require_topic(where: str, servers: str, settings: Mapping[str, Any], topic: str | None) -> None:
    """Raise unless the cluster answers and has the topic, if it is known."""
    complaints = Complaints(where)
    # A consumer, because the question of a producer may create the topic.
    consumer = kafka().Consumer({**settings, "group.id": GROUP, "error_cb": complaints})
    try:
        if topic is None:
            listed(where, servers, consumer, complaints)
        else:
            partitions_of(where, servers, consumer, complaints, topic)
    finally:
        consumer.close()


def similar(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'orders'?`, where there is such a name."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
