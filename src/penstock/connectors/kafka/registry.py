"""The schema registry: settings of a user, and a client whose answers are kept and whose failures are sorted.

Schemas never change under their ids, so each is asked for once. A registry that does not answer is asked again, by a
thread that may wait; the mailbox never asks. Messages are judged only by answers: silence is no verdict.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from penstock.connectors.kafka.client import ANSWER_SECONDS, similar
from penstock.errors import OptionError, PenstockError, PipelineError, StorageError

_UNKNOWN_ID = 40403
_UNKNOWN_SUBJECT = {40401, 40402}
_INCOMPATIBLE = {409, 40901}
_RETRY_SECONDS = 0.2, 5.0
"""The first and the longest wait before a registry that did not answer is asked again."""
_WARN_EVERY_SECONDS = 30.0
_UNKNOWN_WAITS = 0.2, 0.8
"""A schema that was just registered may not have reached the node that is asked."""
_FORGET_UNKNOWN_SECONDS = 10.0

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A Confluent-compatible schema registry, for `registry=` of `KafkaSource` and `KafkaSink`.

    Example:

        registry = SchemaRegistry("https://registry:8081", user="reader", password="secret", subject="orders-value")
        KafkaSource("kafka:9092", "orders", format="avro", registry=registry)
        assert "secret" not in repr(registry)

    `subject` is the name under which the schema of the values is registered, by default that of the topic and `-value`.
    `options` are settings of `confluent_kafka.schema_registry.SchemaRegistryClient`, such as `ssl.ca.location` or those
    of OAuth.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    subject: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise OptionError(f"SchemaRegistry: url is {self.shown!r}: it must be like 'https://registry:8081'")
        if (self.user is None) != (self.password is None):
            raise OptionError("SchemaRegistry: user and password belong together: give both, or neither")
        if "url" in self.options or (self.user is not None and "basic.auth.user.info" in self.options):
            raise OptionError("SchemaRegistry: options may set neither 'url' nor, beside user=, 'basic.auth.user.info'")

    @property
    def shown(self) -> str:
        """The address without a password that it may hold."""
        return urlsplit(self.url)._replace(netloc=urlsplit(self.url).netloc.rpartition("@")[2]).geturl()

    def subject_of(self, where: str, topic: str | None) -> str:
        if self.subject is not None:
            return self.subject
        if topic is None:
            raise PipelineError(
                f"{where}: there is more than one topic, so the registry needs a subject: "
                f"registry=SchemaRegistry(url, subject='orders-value'), or declare schema="
            )
        return f"{topic}-value"

    def settings(self) -> dict[str, Any]:
        # Asking again is done here, where it can be said and can be ended.
        found = {"timeout": ANSWER_SECONDS, "max.retries": 0, **self.options, "url": self.url}
        if self.user is not None:
            found["basic.auth.user.info"] = f"{self.user}:{self.password}"
        return found


def registry_of(where: str, registry: str | SchemaRegistry | None) -> SchemaRegistry | None:
    """The argument of a user as settings; the client is known to be installed."""
    if registry is None:
        return None
    client_class()
    if isinstance(registry, SchemaRegistry):
        return registry
    if isinstance(registry, str):
        return SchemaRegistry(registry)
    raise PipelineError(f"{where}: registry is {registry!r}: it must be a URL or a SchemaRegistry")


def client_class() -> Any:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise PipelineError(
            f"a schema registry needs more packages ({error}): pip install 'penstock[schema-registry]', in the Python "
            f"of the driver and of the workers"
        ) from error
    return SchemaRegistryClient


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema as the registry has it."""

    id: int
    text: str
    kind: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    references: Mapping[str, str]
    """The texts that it refers to, by the names that it has for them, each behind those that it refers to itself."""


class UnknownSchema(ValueError):
    """The registry has no schema with the id of a message."""


class RegistryClient:
    """Asks until there is an answer, or until `is_over`. Raises `StorageError` where asking again cannot help."""

    def __init__(self, where: str, registry: SchemaRegistry, is_over: Callable[[float], bool]) -> None:
        """`is_over` is told for how many seconds nothing was heard."""
        self._where = f"{where}: schema registry {registry.shown}"
        self._registry = registry
        self._is_over = is_over
        self._client: Any = None
        self._schemas: dict[int, Registered] = {}
        self._unknown: dict[int, float] = {}

    def schema(self, number: int) -> Registered:
        """Raises `UnknownSchema`."""
        found = self._schemas.get(number)
        if found is None:
            self._require_known(number)
            found = self._schemas[number] = self._found(number)
        return found

    def _require_known(self, number: int) -> None:
        if time.monotonic() - self._unknown.get(number, -_FORGET_UNKNOWN_SECONDS) < _FORGET_UNKNOWN_SECONDS:
            raise UnknownSchema(f"schema {number} is not in the registry {self._registry.shown}")

    def _found(self, number: int) -> Registered:
        for wait in (*_UNKNOWN_WAITS, None):
            answer = self._asked(lambda client: client.get_schema(number, fmt="serialized"), {_UNKNOWN_ID})
            if answer is not None:
                return self._registered(number, answer)
            if wait is not None:
                time.sleep(wait)
        self._unknown[number] = time.monotonic()
        raise UnknownSchema(f"schema {number} is not in the registry {self._registry.shown}")

    def newest(self, subject: str) -> Registered:
        """The newest version. Raises `StorageError` if there is no such subject."""
        answer = self._asked(lambda client: client.get_latest_version(subject, fmt="serialized"), _UNKNOWN_SUBJECT)
        if answer is None:
            names = self._asked(lambda client: client.get_subjects(), set()) or []
            raise StorageError(
                f"{self._where} has no subject '{subject}'{similar(subject, names)}. Register a schema there, name "
                f"another subject with registry=SchemaRegistry(url, subject=…), or declare schema="
            )
        return self._registered(int(answer.schema_id), answer.schema)

    def register(self, subject: str, kind: str, text: str) -> int:
        """The id of a schema, registered if it is not yet."""
        from confluent_kafka.schema_registry import Schema

        schema = Schema(text, kind)
        found = self._asked(lambda client: client.lookup_schema(subject, schema), {*_UNKNOWN_SUBJECT, _UNKNOWN_ID})
        if found is not None:
            return int(found.schema_id)
        return int(self._asked(lambda client: client.register_schema(subject, schema), set(), subject))

    def _registered(self, number: int, schema: Any) -> Registered:
        references: dict[str, str] = {}
        self._add_references(schema, references, ())
        return Registered(number, schema.schema_str, schema.schema_type, references)

    def _add_references(self, schema: Any, found: dict[str, str], above: tuple[str, ...]) -> None:
        for each in schema.references or ():
            if each.name in found or each.name in above:
                continue
            ask = partial(_version, each)
            answer = self._asked(ask, _UNKNOWN_SUBJECT)
            if answer is None:
                raise UnknownSchema(
                    f"the schema refers to version {each.version} of '{each.subject}', which is not there"
                )
            self._add_references(answer.schema, found, (*above, each.name))
            found[each.name] = answer.schema.schema_str

    # --- one question ---

    def _asked(self, ask: Callable[[Any], Any], absent: set[int], subject: str = "") -> Any:
        """The answer; None if the registry answers with one of the codes `absent`."""
        from confluent_kafka.schema_registry import SchemaRegistryError

        began, warned, wait = time.monotonic(), -_WARN_EVERY_SECONDS, _RETRY_SECONDS[0]
        while True:
            try:
                if self._client is None:
                    self._client = client_class()(self._registry.settings())
                return ask(self._client)
            except SchemaRegistryError as error:
                if error.error_code in absent:
                    return None
                if error.http_status_code < 500 and error.http_status_code != 429:
                    raise self._told(error, subject) from error
                reason: Exception = error
            except (ValueError, TypeError) as error:
                raise PipelineError(f"{self._where}: the client rejects its options: {error}") from error
            except Exception as error:  # of the HTTP client: connections, timeouts
                reason = error
            silent = time.monotonic() - began
            if self._is_over(silent):
                raise self._unanswered(reason, silent) from reason
            if silent - warned >= _WARN_EVERY_SECONDS:
                warned = silent
                _log.warning(
                    "%s does not answer: %s. It is asked again; records wait, and none is lost",
                    self._where,
                    _shown(reason),
                )
            time.sleep(wait)
            wait = min(2 * wait, _RETRY_SECONDS[1])

    def _unanswered(self, reason: Exception, silent: float) -> PenstockError:
        return StorageError(
            f"{self._where} did not answer within {silent:.0f} s: {_shown(reason)}. Check registry=, and that the host "
            f"can be reached from here"
        )

    def _told(self, error: Any, subject: str) -> PenstockError:
        status, text = error.http_status_code, error.error_message
        if status in {401, 403}:
            return StorageError(
                f"{self._where}: no permission ({status}: {text}): give registry=SchemaRegistry(url, user=…, "
                f"password=…) a user that may read the subject, and for a sink that registers, write it"
            )
        if status in _INCOMPATIBLE or error.error_code in _INCOMPATIBLE:
            return PipelineError(
                f"{self._where}: the schema is not compatible with the versions of subject '{subject}' ({text}): give "
                f"new fields a default, or change the compatibility of the subject"
            )
        return StorageError(f"{self._where}: {status} {text}. Check registry=: the address may lack a path")


def _version(reference: Any, client: Any) -> Any:
    return client.get_version(reference.subject, reference.version)


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def at_start(silent_seconds: float) -> bool:
    """In the driver, before anything runs: a wrong address fails as that of a broker does."""
    return silent_seconds >= ANSWER_SECONDS


def canonical(schema: Any) -> str:
    """An Avro schema as text for the registry."""
    return schema if isinstance(schema, str) else json.dumps(schema)
