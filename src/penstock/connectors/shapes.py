"""How two schemas differ, in words."""

from __future__ import annotations

import pyarrow as pa


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
