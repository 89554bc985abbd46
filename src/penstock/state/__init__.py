"""Keyed state of an operator: row states for functions, columnar aggregates for the engine.

Start reading at `keyed`; `pieces` says how it lies in a checkpoint, `aggregate` how a snapshot can be free.
"""

from penstock.model.aggregates import Aggregate, Function
from penstock.state.aggregates.state import AggregateState
from penstock.state.keyed import KeyedSnapshot, KeyedState
from penstock.state.pieces import KeyedPiece
from penstock.state.rows.states import ListState, MapState, ValueState

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
