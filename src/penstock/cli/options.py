"""Settings and Spark properties, as text: `--set checkpoint_interval=500ms`, `--conf spark.driver.memory=2g`."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import typer

from penstock.errors import OptionError
from penstock.model.units import exact_ms
from penstock.spark.settings import Settings

_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_BYTES = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9}
_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}
_NUMBER = re.compile(r"([0-9][0-9_]*(?:\.[0-9]*)?)\s*([A-Za-z]*)")


def settings_of(pairs: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments for `Pipeline.start`, each parsed by the type of its setting, and checked together."""
    kinds = typing.get_type_hints(Settings)
    options: dict[str, Any] = {}
    for name, text in _split(pairs, "--set", "checkpoint_interval=1"):
        # One that does not exist is told apart below, with the nearest that does.
        options[name] = _parsed(name, text, kinds[name]) if name in kinds else text
    try:
        Settings.of(options)
    except (OptionError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--set") from error
    return options


def settings_help() -> str:
    """All settings with their defaults, as they would be written."""
    lines = [f"  {field.name}={_shown(field.default)}" for field in dataclasses.fields(Settings)]
    # The mark keeps the lines from being filled up to one paragraph.
    return "\n".join(["\b", "Settings for --set, with their defaults:", *lines])


def properties_of(pairs: Iterable[str]) -> dict[str, str]:
    """Spark properties."""
    return dict(_split(pairs, "--conf", "spark.driver.memory=2g"))


def _split(pairs: Iterable[str], option: str, example: str) -> list[tuple[str, str]]:
    split = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{pair!r} is not of the form name=value, such as {example}", param_hint=option)
        split.append((name.strip(), text.strip()))
    return split


def _parsed(name: str, text: str, kind: Any) -> Any:
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in kinds and text.lower() == "none":
        return None
    if bool in kinds:
        return _one_of(name, text, _TRUTH)
    if timedelta in kinds:
        return _seconds(name, text)
    if int in kinds:
        what = "bytes, such as 1048576 or 256MB" if "bytes" in name else "a whole number"
        number = _number(name, text, _BYTES if "bytes" in name else {"": 1}, what)
        if number != int(number):
            raise typer.BadParameter(f"{name} is {text!r}: it must be {what}", param_hint="--set")
        return int(number)
    return text


def _seconds(name: str, text: str) -> float:
    """A number is of seconds; with a unit it is a duration as everywhere else."""
    ms = exact_ms(text)
    return _number(name, text, {"": 1}, "seconds, such as 0.5, 500ms or 10m") if ms is None else float(ms) / 1000


def _one_of(name: str, text: str, values: dict[str, bool]) -> bool:
    if text.lower() not in values:
        raise typer.BadParameter(f"{name} is {text!r}: it must be true or false", param_hint="--set")
    return values[text.lower()]


def _number(name: str, text: str, units: dict[str, Any], what: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise typer.BadParameter(f"{name} is {text!r}: it must be {what}", param_hint="--set")
    return float(match[1].replace("_", "")) * float(units[match[2].lower()])


def _shown(default: Any) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default).lower()
