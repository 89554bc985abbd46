"""The description of the REST interface, and the table that puts its fields beside Flink's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from penstock.dashboard.openapi import PREFIX, document

DOCUMENT = Path(__file__).parents[3] / "docs" / "monitoring.md"


def fields_of(schema: Any, components: Any, seen: frozenset[str] = frozenset()) -> set[str]:
    """All fields that an answer can have, at any depth."""
    if isinstance(schema, list):
        return set().union(*(fields_of(each, components, seen) for each in schema))
    if not isinstance(schema, dict):
        return set()
    found = set(schema.get("properties", ()))
    for key, value in schema.items():
        if key == "$ref" and value not in seen:
            found |= fields_of(components[value.rpartition("/")[2]], components, seen | {value})
        elif key == "properties":
            found |= fields_of(list(value.values()), components, seen)
        elif key != "$ref":
            found |= fields_of(value, components, seen)
    return found


def test_the_fields_that_the_documents_put_beside_those_of_flink_exist() -> None:
    described = document()
    text = DOCUMENT.read_text(encoding="utf-8").partition("### Fields, and those of Flink")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `/")]
    assert len(rows) > 20
    for row in rows:
        path, *names = re.findall(r"`([^`]+)`", row)
        if names and not names[0].startswith("/"):
            operations = described["paths"][PREFIX + path].values()
            answers = [each["responses"] for each in operations]
            missing = set(names) - fields_of(answers, described["components"]["schemas"])
            assert not missing, f"{path} has no {missing}"
        else:
            assert all(PREFIX + each in described["paths"] for each in (path, *names))
