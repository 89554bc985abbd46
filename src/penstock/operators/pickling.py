"""Whether a pipeline can travel to its workers, and if not, which object of it is in the way.

Code travels in Spark's closure, so it is pickled with Spark's own cloudpickle, which is imported only here.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator

from penstock.errors import PenstockError, PipelineError

_DEPTH_MAX = 5
_DRIVER_ONLY = ("SparkSession", "SparkContext", "DataFrame", "Column", "GroupedData", "RDD")
"""Classes of PySpark whose values are handles of the driver's session: no worker can have one."""


def dumps(value: object) -> bytes:
    """Pickled as Spark does it."""
    from pyspark import cloudpickle

    data: bytes = cloudpickle.dumps(value)
    return data


def loads(data: bytes) -> object:
    """The inverse, for what this very process tree has pickled; never for what came from a socket or a checkpoint."""
    from pyspark import cloudpickle

    return cloudpickle.loads(data)


def check_travels(operator: str, value: object) -> None:
    """Raise `PipelineError` if `value`, a part of the operator, cannot be pickled."""
    error = _failure(value)
    if error is None:
        return
    if isinstance(error, PenstockError):
        raise error
    steps = _culprit(value, 0, set())
    way = ", and in it ".join(text for text, _ in steps)
    cannot = f"operator '{operator}' cannot be sent to the workers: {way or 'it'}"
    if steps and _is_of_the_driver(steps[-1][1]):
        raise PipelineError(
            f"{cannot} exists only in the driver. Read a DataFrame as a stream with DataFrameSource, "
            "join it with join_table, or collect() it first and use the rows"
        ) from error
    raise PipelineError(
        f"{cannot} cannot be pickled ({type(error).__name__}: {error}). Create it where it is used: in the function, "
        f"in open(), or at module level"
    ) from error


def _failure(value: object) -> Exception | None:
    try:
        dumps(value)
    except Exception as error:  # whatever a __reduce__ may raise
        return error
    return None


def _culprit(value: object, depth: int, seen: set[int]) -> list[tuple[str, object]]:
    """The way to the innermost part of `value` that cannot be pickled: each step in words, and the part there."""
    if depth > _DEPTH_MAX or id(value) in seen:
        return []
    seen.add(id(value))
    for name, part in _parts(value):
        if _failure(part) is not None:
            inside = [] if _is_of_the_driver(part) else _culprit(part, depth + 1, seen)
            # How an operator is put together is nobody's business but ours.
            is_ours = depth == 0 and inside and isinstance(value, functools.partial)
            return inside if is_ours else [(f"{name} (of type {type(part).__name__})", part), *inside]
    return []


def _is_of_the_driver(value: object) -> bool:
    return type(value).__module__.startswith("pyspark.") and type(value).__name__ in _DRIVER_ONLY


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, functools.partial):
        yield "the function", value.func
        yield from ((f"argument {number}", part) for number, part in enumerate(value.args))
        yield from ((f"argument '{name}'", part) for name, part in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield f"the object of method '{value.__name__}'", value.__self__
    elif isinstance(value, types.FunctionType):
        variables = inspect.getclosurevars(value)
        where = f"of function '{value.__name__}'"
        yield from ((f"variable '{name}' {where}", part) for name, part in variables.nonlocals.items())
        yield from ((f"global '{name}' {where}", part) for name, part in variables.globals.items())
        yield from ((f"a default {where}", part) for part in value.__defaults__ or ())
    elif isinstance(value, dict):
        yield from ((f"entry {name!r}", part) for name, part in value.items())
    elif isinstance(value, list | tuple | set):
        yield from ((f"element {number}", part) for number, part in enumerate(value))
    elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType):
        kind = type(value).__name__
        yield from ((f"attribute '{name}' of {kind}", part) for name, part in vars(value).items())
