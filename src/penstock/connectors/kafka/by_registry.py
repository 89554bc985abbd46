"""Formats whose messages name their schemas: what is settled in the driver, and what each thread makes of it.

The schema of the reader is declared, or is the newest of the subject when the pipeline is first started. Its id is then
part of every position, so that a restart reads the same columns, whatever was registered since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from penstock.connectors.kafka.avro.messages import (
    AvroByRegistry,
    avro_encoder,
    column_names,
    registered_avro,
)
from penstock.connectors.kafka.avro.schemas import arrow_schema, avro_schema
from penstock.connectors.kafka.protobuf.message_types import MessageType, message_type, protobuf
from penstock.connectors.kafka.protobuf.messages import (
    ProtobufByRegistry,
    protobuf_encoder,
    registered_message,
    text_for_registry,
)
from penstock.connectors.kafka.registry import Registered, RegistryClient, SchemaRegistry, at_start, canonical
from penstock.errors import PipelineError

Kind = Literal["avro", "protobuf"]


class ByRegistry:
    """A format with a registry. It travels to the workers."""

    def __init__(self, where: str, kind: Kind, registry: SchemaRegistry, schema: Any, message: Any) -> None:
        self._where = where
        self.registry = registry
        self.kind = kind
        self._schema = schema
        self._name = message if isinstance(message, str) else None
        self._avro: Any = None
        self._message: MessageType | None = None
        if kind == "protobuf":
            protobuf()
            if schema is not None or (message is not None and not isinstance(message, str)):
                self._message = message_type(where, message, schema)
        elif message is not None:
            raise PipelineError(f"{where}: message= is for format='protobuf'")
        elif schema is not None:
            self._avro = avro_schema(where, schema)
            arrow_schema(where, self._avro)
        self.id: int | None = None
        """Of the schema that was the newest when the driver asked, or that the sink registered."""

    @property
    def is_declared(self) -> bool:
        return self._avro is not None or self._message is not None

    @property
    def names(self) -> Sequence[str]:
        """Of the columns, as far as they are known."""
        if self._avro is not None:
            return column_names(self._avro)
        return [] if self._message is None else list(self._message.schema.names)

    # --- in the driver ---

    def settle_reader(self, topic: str | None) -> Sequence[str]:
        """Ask for the newest schema, unless one is declared, and return the names of its columns."""
        if self.is_declared:
            return self.names
        newest = self._client().newest(self.registry.subject_of(self._where, topic))
        self.id = newest.id
        if self.kind == "avro":
            avro = registered_avro(self._where, newest)
            return list(arrow_schema(self._where, avro).names)
        return list(registered_message(self._where, newest, self._name).schema.names)

    def settle_writer(self, topic: str | None) -> None:
        """Register the declared schema, or take the newest."""
        subject = self.registry.subject_of(self._where, topic)
        if self._avro is not None:
            self.id = self._client().register(subject, "AVRO", canonical(self._schema))
        elif self._message is not None:
            text = self._schema if isinstance(self._schema, str) else text_for_registry(self._where, self._message)
            self.id = self._client().register(subject, "PROTOBUF", text)
        else:
            newest = self._client().newest(subject)
            self.id = newest.id
            self._keep(newest)

    def _keep(self, newest: Registered) -> None:
        if self.kind == "avro":
            self._avro = registered_avro(self._where, newest)
            arrow_schema(self._where, self._avro)
        else:
            self._message = registered_message(self._where, newest, self._name)

    def _client(self) -> RegistryClient:
        return RegistryClient(self._where, self.registry, at_start)

    # --- in the workers ---

    def decoder(self, reader_id: int | None, is_closed: Callable[[], bool]) -> Any:
        """For one thread, which waits for the registry until it is closed."""
        client = RegistryClient(self._where, self.registry, lambda silent_seconds: is_closed())
        reader_id = None if self.is_declared else reader_id
        if self.kind == "avro":
            return AvroByRegistry(self._where, client, self._avro, reader_id)
        return ProtobufByRegistry(self._where, client, self._message, reader_id, self._name)

    def encoder(self) -> Any:
        assert self.id is not None, "the schema of a sink is settled before it travels"
        if self.kind == "avro":
            return avro_encoder(self._where, self._avro, self.id)
        assert self._message is not None
        return protobuf_encoder(self._message, self.id)
