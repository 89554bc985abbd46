"""What the store in memory promises beyond the contract: threads are kept apart by more than luck."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from penstock.storage import MemoryStore


class SlowDictionary(dict[str, bytes]):
    """Leaves every other thread the time to do harm between a look and what follows from it."""

    def __contains__(self, path: object) -> bool:
        found = super().__contains__(path)
        time.sleep(0.02)
        return found


def test_no_thread_comes_between_looking_and_creating() -> None:
    store = MemoryStore()
    store.blobs = SlowDictionary()
    start = threading.Barrier(4)

    def contend(me: int) -> bool:
        start.wait()
        return store.create("a", b"%d" % me)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(contend, range(4))) == [False, False, False, True]


def test_what_is_stored_does_not_change_with_the_buffer_it_came_from() -> None:
    store = MemoryStore()
    buffer = bytearray(b"before")
    store.create("a", memoryview(buffer))
    store.write("b", [memoryview(buffer)])
    buffer[:] = b"after!"
    assert store.read("a") == store.read("b") == b"before"
