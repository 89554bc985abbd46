"""Defects of `map_async` and of timers. The simulator has neither: tests must notice these."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_ASYNC = "api/async_operator.py"
_TIMERS = "api/timers.py"


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    tests = {
        _ASYNC: ("tests/unit/api/test_map_async_in_hand.py", "tests/unit/api/test_map_async.py"),
        _TIMERS: ("tests/unit/api/test_functions.py", "tests/unit/api/test_timer_calls.py"),
    }
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests[file])


MUTANTS = (
    # --- map_async ---
    _mutant(
        "A result that waits behind a slower one is not in the state",
        _ASYNC,
        "self._in_hand.put([job.batch for job in jobs])",
        "self._in_hand.put([job.batch for job in jobs if not job.done.is_set()])",
        "I1: it has not been emitted, so after a failure its records are nowhere.",
    ),
    _mutant(
        "A batch that waits for a thread is not in the state",
        _ASYNC,
        "self._in_hand.put([job.batch for job in jobs])",
        "self._in_hand.put([job.batch for job in jobs if job.is_started])",
        "I1: sources have passed it, so after a failure its records are nowhere.",
    ),
    _mutant(
        "The last batch in hand stays in the state after its result was emitted",
        _ASYNC,
        "        self._in_hand.put([job.batch for job in jobs])\n",
        "        if jobs:\n            self._in_hand.put([job.batch for job in jobs])\n",
        "I1: it is downstream and in the state, so after a failure it comes twice.",
    ),
    _mutant(
        "Batches that were in hand are not run again",
        _ASYNC,
        "        for batch in self._in_hand.get():\n"
        "            self._line.append(_Job(batch, self.context.now_ms()))\n",
        "",
        "I1: they were in the state and nowhere else.",
    ),
    _mutant(
        "Results are emitted as they come although the order was to be kept",
        _ASYNC,
        "            if self.ordered:\n                break\n",
        "",
        "I2: the records of one key change places.",
    ),
    _mutant(
        "A watermark passes the batches in hand",
        _ASYNC,
        "        self._line.append(watermark)\n        return True\n",
        "        return None\n",
        "Records that were in time come late.",
    ),
    _mutant(
        "A watermark waits only for the batch that was oldest when it came",
        _ASYNC,
        "                if waiting:\n                    waiting.append(item)\n",
        "                if waiting and self.ordered:\n                    waiting.append(item)\n",
        "Unordered, it passes batches that are still in hand, and their records come late.",
    ),
    _mutant(
        "A call that raised counts as one without a result",
        _ASYNC,
        "        if job.error is not None:\n            context = self.context\n",
        "        if isinstance(job.error, UserCodeError):\n            context = self.context\n",
        "The records of its batch are lost in silence.",
    ),
    _mutant(
        "A thread ends with a function that raises more than an exception",
        _ASYNC,
        "            except BaseException as error:\n                job.error = error\n",
        "            except Exception as error:\n                job.error = error\n",
        "The batch is in hand for ever, and the pipeline stands still without an error.",
    ),
    _mutant(
        "map_async is idle as soon as all calls have returned",
        _ASYNC,
        "self.is_idle = not self._line",
        "self.is_idle = all(job.done.is_set() for job in jobs)",
        "At the end of input results that nobody has emitted are lost.",
    ),
    _mutant(
        "map_async takes input although calls that have returned pile up",
        _ASYNC,
        "all(job.is_started for job in jobs) and len(jobs) < 2 * self.concurrency",
        "all(job.is_started for job in jobs)",
        "I7: behind one slow call, in order, the batches in hand and the state grow without a bound.",
    ),
    _mutant(
        "map_async takes input while a batch waits for a thread",
        _ASYNC,
        "all(job.is_started for job in jobs) and len(jobs) < 2 * self.concurrency",
        "len(jobs) < 2 * self.concurrency",
        "I7: more is in hand, and so in every checkpoint, than can be worked on.",
    ),
    _mutant(
        "Processes of map_async outlive the operator",
        _ASYNC,
        "        for runner in self._runners:\n            runner.close()\n",
        "",
        "Each attempt leaves its processes behind, and a stuck one stays for ever.",
    ),
    _mutant(
        "A process of map_async that starts while the operator closes is left alone",
        _ASYNC,
        "                    if self._is_closed:\n                        runner.close()\n",
        "",
        "It was not among those that were closed, and outlives the attempt.",
    ),
    # --- timers ---
    _mutant(
        "A timer that was deleted is called all the same",
        _TIMERS,
        "        if self._state.contains_key((at_ms,)):\n            # Removed first",
        "        if True:\n            # Removed first",
        "`delete_timer` would do nothing.",
    ),
    _mutant(
        "A timer is removed after its call",
        _TIMERS,
        "            self._state.remove_key((at_ms,))\n            if call:\n"
        "                self._due(key_group, key, at_ms)\n",
        "            if call:\n                self._due(key_group, key, at_ms)\n"
        "            self._state.remove_key((at_ms,))\n",
        "A function that sets the same time again has set nothing.",
    ),
    _mutant(
        "A timer that was called stays in the state",
        _TIMERS,
        "            self._state.remove_key((at_ms,))\n            if call:\n",
        "            if call:\n",
        "I1: after a restart it is called again.",
    ),
    _mutant(
        "Restored timers wait for the next one that is set",
        _TIMERS,
        "                self._push(at_ms, key_group, key)\n        self._arm()\n\n    def set",
        "                self._push(at_ms, key_group, key)\n\n    def set",
        "A key that gets no more records never hears of its timer.",
    ),
    _mutant(
        "A timer earlier than the one waited for is called with that one",
        _TIMERS,
        "(self._armed_at_ms is None or self._heap[0][0] < self._armed_at_ms)",
        "self._armed_at_ms is None",
        "It is late by as much as the others are far away.",
    ),
    _mutant(
        "All timers that are due are called in one turn of the mailbox",
        _TIMERS,
        "self._heap[0][0] <= now_ms and fired < _FIRED_AT_ONCE:",
        "self._heap[0][0] <= now_ms:",
        "I11: barriers and heartbeats wait for as many calls as there are keys.",
    ),
    _mutant(
        "After a portion of timers nobody comes back for the rest",
        _TIMERS,
        "            self._fired()\n        self._arm()\n",
        "            self._fired()\n        if fired < _FIRED_AT_ONCE:\n            self._arm()\n",
        "They wait until another timer is set.",
    ),
    _mutant(
        "Output of timers waits for the next batch",
        _TIMERS,
        "        if fired:\n            self._fired()\n",
        "",
        "A key without more input never gets it out.",
    ),
    _mutant(
        "Timers are called at the end although they are to be dropped",
        _TIMERS,
        "self._settle(*entry, call=fire)",
        "self._settle(*entry, call=True)",
        '`at_end="drop"` would mean nothing.',
    ),
    _mutant(
        "Timers that are dropped at the end stay in the state",
        _TIMERS,
        "            entry = heapq.heappop(self._heap)\n            self._settle(*entry, call=fire)\n",
        "            entry = heapq.heappop(self._heap)\n            if fire:\n"
        "                self._settle(*entry, call=True)\n",
        "A pipeline that starts again from its end calls them.",
    ),
)
