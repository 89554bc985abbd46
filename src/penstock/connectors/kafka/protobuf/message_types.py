"""The type of a message, from whatever describes it, in a form that travels to the workers."""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.connectors.kafka.protobuf.proto_text import ProtoSyntaxError, parsed_proto
from penstock.errors import PipelineError

_INSTALL = "pip install 'penstock[schema-registry]', in the Python of the driver and of the workers"


def protobuf() -> Any:
    """The module of descriptors. Raises `PipelineError` if the packages are not installed."""
    try:
        importlib.import_module("ptars")
        return importlib.import_module("google.protobuf.descriptor_pb2")
    except ImportError as error:
        raise PipelineError(f"format='protobuf' needs the packages protobuf and ptars ({error}): {_INSTALL}") from error


class MessageType:
    """A message by its full name, and the files that describe it, each behind those that it imports."""

    def __init__(self, files: Sequence[bytes], name: str) -> None:
        self.files = tuple(files)
        self.name = name

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "name": self.name}

    @cached_property
    def descriptor(self) -> Any:
        pool: Any = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
        for file in self.files:
            pool.AddSerializedFile(file)
        return pool.FindMessageTypeByName(self.name)

    @cached_property
    def handler(self) -> Any:
        """Converts between messages and Arrow, in one call for all rows."""
        ptars: Any = importlib.import_module("ptars")
        # As Spark has them: microseconds, and enums by name.
        config = ptars.PtarsConfig(timestamp_unit="us", duration_unit="us", time_unit="us", enum_repr="string")
        return ptars.HandlerPool([self.descriptor.file], config=config).get_for_message(self.descriptor)

    @cached_property
    def schema(self) -> pa.Schema:
        """All columns may be null: a message without a value is a row of nulls."""
        return pa.schema([field.with_nullable(True) for field in self.handler.schema()])


def message_type(where: str, message: Any, schema: Any) -> MessageType:
    """The type that arguments of a user name. Raises `PipelineError`."""
    protobuf()
    descriptor = getattr(message, "DESCRIPTOR", None)
    if descriptor is not None and hasattr(descriptor, "full_name"):
        return MessageType([file.serialized_pb for file in _with_imports(descriptor.file)], descriptor.full_name)
    if schema is None or not (message is None or isinstance(message, str)):
        raise PipelineError(
            f"{where}: format='protobuf' needs message=, a generated class; or schema=, a descriptor set (bytes) or "
            f"the text of a .proto file, and with message= the full name of the message; or registry="
        )
    try:
        files = _files_of_set(schema) if isinstance(schema, bytes) else files_of_text(schema, {})
        return named(files, message)
    except Exception as error:
        raise PipelineError(f"{where}: schema= describes no Protobuf message: {error}") from error


def named(files: Sequence[bytes], name: str | None) -> MessageType:
    """A message of the last file by its full or short name, or its first one. Raises `ValueError`."""
    proto = protobuf().FileDescriptorProto.FromString(files[-1])
    names = [f"{proto.package}.{each.name}".lstrip(".") for each in proto.message_type]
    if name is None:
        if not names:
            raise ValueError(f"{proto.name} has no message")
        return _built(files, names[0])
    full = next((each for each in names if name in {each, each.rpartition(".")[2]}), name)
    try:
        return _built(files, full)
    except KeyError as error:
        raise ValueError(f"no message '{name}'; the messages are {', '.join(names) or 'none'}") from error


def _built(files: Sequence[bytes], name: str) -> MessageType:
    made = MessageType(files, name)
    _ = made.descriptor
    return made


def _with_imports(file: Any) -> list[Any]:
    found: list[Any] = []
    for each in file.dependencies:
        found += [other for other in _with_imports(each) if other not in found]
    return [*found, file]


def _files_of_set(data: bytes) -> list[bytes]:
    found = protobuf().FileDescriptorSet.FromString(data).file
    if not found:
        raise ValueError("the descriptor set is empty")
    by_name = {each.name: each for each in found}
    return _ordered(by_name[found[-1].name], by_name)


def files_of_text(text: str, references: Mapping[str, str]) -> list[bytes]:
    """The files of a schema as a registry has it: `.proto` text, or the descriptor of a file in base 64.

    `references` are the texts of its imports, by the names under which they are imported.
    """
    by_name = {name: _file_of(name, each) for name, each in references.items()}
    return _ordered(_file_of("schema.proto", text), by_name)


def _file_of(name: str, text: str) -> Any:
    try:
        found = protobuf().FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        if found.message_type or found.enum_type:
            found.name = name
            return found
    except (binascii.Error, ValueError, importlib.import_module("google.protobuf.message").DecodeError):
        pass
    return parsed_proto(name, text)


def _ordered(file: Any, by_name: Mapping[str, Any]) -> list[bytes]:
    """The file behind all that it imports, well-known files included."""
    found: dict[str, bytes] = {}

    def add(each: Any, above: tuple[str, ...]) -> None:
        for name in each.dependency:
            if name in above:
                raise ProtoSyntaxError(f"'{name}' imports itself")
            if name not in found:
                add(by_name[name] if name in by_name else _well_known(each.name, name), (*above, name))
        found[each.name] = each.SerializeToString()

    add(file, (file.name,))
    return list(found.values())


def _well_known(importer: str, name: str) -> Any:
    """Files of Google's that come with the Python packages."""
    if name.startswith("google/") and name.endswith(".proto"):
        module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
        try:
            file = importlib.import_module(module).DESCRIPTOR
        except ImportError:
            pass
        else:
            return protobuf().FileDescriptorProto.FromString(file.serialized_pb)
    raise ProtoSyntaxError(f"'{importer}' imports '{name}', which is neither among its references nor well known")
