"""The store of an attempt: closed with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.driver.attempts.attempt_store import AttemptStore
from penstock.errors import StorageError
from penstock.storage.memory import MemoryStore

CALLS: list[Callable[[AttemptStore], object]] = [
    lambda store: store.create("b", b"2"),
    lambda store: store.write("a", [b"2"]),
    lambda store: store.read("a"),
    lambda store: store.list(""),
    lambda store: store.delete("a"),
]


@pytest.mark.parametrize("call", CALLS)
def test_after_the_end_of_an_attempt_nothing_is_asked_of_the_store(call: Callable[[AttemptStore], object]) -> None:
    inner = MemoryStore()
    inner.write("a", [b"1"])
    store = AttemptStore(inner)
    store.close()
    with pytest.raises(StorageError, match="the attempt that asks this of the store is over"):
        call(store)
    assert inner.blobs == {"a": b"1"}


def test_every_call_that_comes_back_is_counted_whatever_it_brings() -> None:
    store = AttemptStore(MemoryStore())
    store.write("a", [b"1", b"2"])
    assert store.read("a", 1, 1) == b"2"
    assert (store.create("a", b"3"), store.list(""), store.returned) == (False, ["a"], 4)
    with pytest.raises(StorageError):
        store.read("nothing")
    store.delete("a")
    assert (store.list(""), store.returned) == ([], 7)
