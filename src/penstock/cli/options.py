"""Settings and Spark properties, as text: `--set checkpoint_interval=500ms`, `--conf spark.driver.memory=2g`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable
from typing import Any

import typer

from penstock.errors import OptionError
from penstock.model.units import duration_ms
from penstock.spark.settings import Settings

_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


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


def duration_of(text: str | float, option: str, *, at_least_ms: int = 0) -> float:
    """The seconds of an option that takes a duration. Raises `typer.BadParameter`."""
    try:
        return duration_ms("it", text, at_least_ms=at_least_ms, error=OptionError) / 1000
    except OptionError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def port_of(text: str, option: str) -> int | None:
    """A port, or None for `none`. Raises `typer.BadParameter`."""
    if text.lower() == "none":
        return None
    if not (text.isascii() and text.isdigit() and int(text) < 65_536):
        raise typer.BadParameter(f"{text!r} is neither a port from 0 to 65535 nor none", param_hint=option)
    return int(text)


def _parsed(name: str, text: str, kind: Any) -> Any:
    """The value of a setting. Durations and sizes stay texts: `Settings` parses them, as everywhere else."""
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in kinds and text.lower() == "none":
        return None
    if str in kinds:
        return text
    if bool in kinds:
        return _one_of(name, text, _TRUTH)
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{name} is {text!r}: it must be a whole number", param_hint="--set") from None


def _one_of(name: str, text: str, values: dict[str, bool]) -> bool:
    if text.lower() not in values:
        raise typer.BadParameter(f"{name} is {text!r}: it must be true or false", param_hint="--set")
    return values[text.lower()]


def _shown(default: Any) -> str:
    return default if isinstance(default, str) else str(default).lower()
