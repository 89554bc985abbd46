"""Keyed state of an operator: row states for functions, columnar aggregates for the engine.

Start reading at `keyed`; `pieces` says how it lies in a checkpoint, `aggregate` how a snapshot can be free.
"""

from penstock.api.aggregates import Aggregate, Function
from penstock.runtime.state.aggregate import AggregateState
from penstock.runtime.state.keyed import KeyedSnapshot, KeyedState
from penstock.runtime.state.pieces import KeyedPiece
from penstock.runtime.state.row_states import ListState, MapState, ValueState

__all__ = [
    "KeyedState",
    "KeyedSnapshot",
    "KeyedPiece",
    "ValueState",
    "ListState",
    "MapState",
    "AggregateState",
    "Aggregate",
    "Function",
]
