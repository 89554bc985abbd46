"""Whether messages of one type can be read as another: by field number, with nothing lost and nothing reinterpreted.

Protobuf itself reads anything as anything: a field whose type has changed becomes its default, or another number,
without a word. So types are compared before a message is read.
"""

from __future__ import annotations

from typing import Any

from penstock.connectors.kafka.protobuf.proto_text import FIELD_TYPES

_WIDENED = {
    "int32": {"int64"},
    "uint32": {"uint64", "int64"},
    "sint32": {"sint64"},
    "bool": {"int32", "int64", "uint32", "uint64"},
    "enum": {"int32", "int64"},
    "string": {"bytes"},
}


def incompatibility(writer: Any, reader: Any, path: str = "", seen: frozenset[tuple[str, str]] = frozenset()) -> str:
    """Why messages of `writer` cannot be read as `reader`; empty if they can. Both are descriptors."""
    pair = writer.full_name, reader.full_name
    if pair in seen:
        return ""
    written = {field.number: field for field in writer.fields}
    for field in reader.fields:
        other = written.get(field.number)
        reason = "" if other is None else _field(other, field, f"{path}{field.name}", seen | {pair})
        if reason:
            return reason
    return ""


def _field(writer: Any, reader: Any, path: str, seen: frozenset[tuple[str, str]]) -> str:
    before, after = FIELD_TYPES[writer.type - 1], FIELD_TYPES[reader.type - 1]
    told = f"field '{path}' (number {reader.number}) is written as {_shown(writer)} and read as {_shown(reader)}"
    if writer.is_repeated != reader.is_repeated:
        return told
    if before != after:
        return "" if after in _WIDENED.get(before, ()) else told
    if before == "message":
        return incompatibility(writer.message_type, reader.message_type, f"{path}.", seen)
    if before == "enum":
        known = {value.number: value.name for value in reader.enum_type.values}
        for value in writer.enum_type.values:
            if known.get(value.number, value.name) != value.name:
                return f"{told}, whose number {value.number} was '{value.name}' and is '{known[value.number]}'"
    return ""


def _shown(field: Any) -> str:
    kind = FIELD_TYPES[field.type - 1]
    return f"repeated {kind}" if field.is_repeated else kind
