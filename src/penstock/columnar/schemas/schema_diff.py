"""Types in words, and how two schemas differ."""

from __future__ import annotations

import pyarrow as pa


def type_text(kind: pa.DataType) -> str:
    """A type as a manifest records it: equal for equal types. Nested types are spelled here and not by Arrow, whose
    spelling of them may change from version to version."""
    if pa.types.is_struct(kind):
        return f"struct({', '.join(field_text(kind.field(place)) for place in range(kind.num_fields))})"
    if pa.types.is_map(kind):
        return f"map({type_text(kind.key_type)}, {_item_text(kind.item_field)})"
    for name, is_kind in _LISTS.items():
        if is_kind(kind):
            return f"{name}({_item_text(kind.value_field)})"
    if pa.types.is_fixed_size_list(kind):
        return f"list of {kind.list_size}({_item_text(kind.value_field)})"
    return str(kind)


_LISTS = {
    "list": pa.types.is_list,
    "large_list": pa.types.is_large_list,
    "list_view": pa.types.is_list_view,
    "large_list_view": pa.types.is_large_list_view,
}


def field_text(field: pa.Field) -> str:
    return f"{field.name}: {_item_text(field)}"


def _item_text(field: pa.Field) -> str:
    """Without the name, which means nothing for the items of a list."""
    return type_text(field.type) + ("" if field.nullable else " not null")


def schema_text(schema: pa.Schema) -> str:
    """Names, types and nullability of all columns."""
    return "(" + ", ".join(map(field_text, schema)) + ")"


def differences(known: pa.Schema, other: pa.Schema) -> str:
    """What `other` has that `known` has not, and the other way round; empty if they have the same columns and types."""
    said: list[str] = []
    ours, theirs = {field.name: field for field in known}, {field.name: field for field in other}
    said += [f"'{name}' is missing" for name in ours if name not in theirs]
    said += [f"'{name}' is new" for name in theirs if name not in ours]
    for name, field in ours.items():
        if name in theirs and field.type != theirs[name].type:
            said.append(f"'{name}' was {field.type} and is {theirs[name].type}")
    if not said and known.names != other.names:
        said.append(f"the columns were in the order {', '.join(known.names)} and are in {', '.join(other.names)}")
    return "; ".join(said)
