"""Defects of `map_async`, of timers and of state with a time to live. Their own tests must notice these."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_ASYNC = "operators/async_map/operator.py"
_TIMERS = "operators/keyed/timers.py"
_EXPIRING = "operators/keyed/ttl.py"
_KEYED = "operators/keyed/process.py"
_ACCESS = "operators/keyed/access.py"
_VALUES = "operators/spark/values.py"
_STATES = "state/rows/states.py"
_TUPLES = "state/rows/tuples.py"
_COLUMN_VALUES = "columnar/values.py"
_RECORDS = "columnar/records.py"
_ROW_CALLS = "columnar/row_calls.py"
_FORMATS = "operators/formats.py"
_FRAMES = "operators/spark/frames.py"
_CURSOR = "state/rows/cursor.py"
_BATCHES = "operators/keyed/batch_function.py"


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    tests = {
        _ASYNC: (
            "tests/unit/operators/async_map/test_map_async_in_hand.py",
            "tests/unit/operators/async_map/test_map_async.py",
        ),
        _TIMERS: (
            "tests/unit/operators/keyed/test_timer_calls.py",
            "tests/unit/operators/keyed/test_timers.py",
            "tests/unit/operators/keyed/test_functions.py",
            "tests/unit/operators/keyed/test_event_timers.py",
        ),
        _KEYED: ("tests/unit/operators/spark/test_processor.py",),
        _ACCESS: ("tests/unit/operators/spark/test_processor.py",),
        _VALUES: ("tests/unit/operators/spark/test_processor.py",),
        _EXPIRING: ("tests/unit/operators/keyed/test_ttl.py",),
        _STATES: ("tests/unit/state/test_cheap_state.py",),
        "state/rows/base.py": ("tests/unit/state/test_cheap_state.py",),
        _TUPLES: ("tests/unit/state/test_cheap_state.py",),
        _COLUMN_VALUES: ("tests/unit/columnar/test_values.py",),
        _RECORDS: ("tests/unit/columnar/test_records.py",),
        _ROW_CALLS: ("tests/unit/columnar/test_row_calls.py",),
        _FORMATS: (
            "tests/unit/operators/async_map/test_child_process.py",
            "tests/unit/columnar/test_row_calls.py",
        ),
        _FRAMES: ("tests/unit/operators/spark/test_frames.py",),
        _CURSOR: ("tests/unit/operators/keyed/test_batch_function.py",),
        _BATCHES: ("tests/unit/operators/keyed/test_batch_function.py",),
    }
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests[file])


MUTANTS = (
    # --- rows and their state ---
    _mutant(
        "Fields that the schema does not have are left out of rows as they are returned",
        _ROW_CALLS,
        'f"if {unless}type(made) is not dict or len(made) != {len(returned)}:"',
        'f"if {unless}type(made) is not dict:"',
        "They are lost without a word.",
    ),
    _mutant(
        "The rows behind one that is not like the others are not called",
        _ROW_CALLS,
        "            odd += self.results(function)\n",
        "            odd += [] if odd else self.results(function)\n",
        "Records are lost without a word.",
    ),
    _mutant(
        "An output overtakes one in front of it that is not like the others",
        _ROW_CALLS,
        'otherwise="odd.append(made)", unless="odd or "',
        'otherwise="odd.append(made)", unless=""',
        "I2: the outputs of a record come out of order.",
    ),
    _mutant(
        "A row that was interrupted goes on into the next one",
        _ROW_CALLS,
        "if left <= 0 or not is_whole:",
        "if left <= 0:",
        "A checkpoint waits for more than the end of one record.",
    ),
    _mutant(
        "The row of an exception is the one behind it",
        _ROW_CALLS,
        "return self.count - operator.length_hint(self._first) - 1",
        "return min(self.count - operator.length_hint(self._first), self.count - 1)",
        "The user looks at a row that has nothing wrong with it.",
    ),
    _mutant(
        "A column of numbers that are equal to those that came is taken for them",
        _FORMATS,
        "if _is_text(field.type) and _is_passed_on(",
        "if _is_passed_on(",
        "A negative zero loses its sign, and what is refused depends on the other rows.",
    ),
    _mutant(
        "Keys of many rows are stored with the types that they came in",
        _CURSOR,
        "    return array if array.type == kind else array.cast(kind)\n",
        "    return array\n",
        "No checkpoint can be written of them.",
    ),
    _mutant(
        "A snapshot of a list has the elements that were appended after it",
        _STATES,
        "columns[0].extend(entry.items[: entry.count])",
        "columns[0].extend(entry.items)",
        "I1: their records are in the state and will be replayed.",
    ),
    _mutant(
        "A list of an older epoch is counted on",
        _STATES,
        "        elif cell.epoch != self._epoch:\n            # A snapshot",
        "        elif False:\n            # A snapshot",
        "I1: the snapshot holds the same cell, and with it elements of records that will be replayed.",
    ),
    _mutant(
        "A key group that a snapshot holds is written to",
        _STATES,
        "group.epoch != self._epoch:\n            group = self._writable_group(cursor.key_group)\n",
        "False:\n            group = self._writable_group(cursor.key_group)\n",
        "I1: the snapshot has values of records that will be replayed.",
    ),
    _mutant(
        "A NaN is stored as the object that it is",
        _TUPLES,
        '        check += f" and {name} == {name}"',
        "        pass",
        "As a key it is not found again.",
    ),
    _mutant(
        "Times beyond the years of Python become numbers",
        _COLUMN_VALUES,
        "    least, most = _SECONDS_MIN + margin, _SECONDS_MAX - margin\n",
        "    return True\n    least, most = _SECONDS_MIN + margin, _SECONDS_MAX - margin\n",
        "A function gets a number, or another time, where Arrow has an error.",
    ),
    _mutant(
        "Fields that only some rows have are left out",
        _RECORDS,
        "return (names, columns) if sum(map(len, rows)) == len(rows) * len(names) else None",
        "return names, columns",
        "They are lost without a word.",
    ),
    _mutant(
        "Keys of another subtask are read and written",
        _CURSOR,
        "if len(numbers) and not (self.owned.start <= numbers.min() and numbers.max() < self.owned.stop):",
        "if False:",
        "I9: their values are lost at the next rescale, or are in two places.",
    ),
    _mutant(
        "A function of batches stands at the key of the last timer",
        _BATCHES,
        "        self.context.keyed.leave_key()\n",
        "",
        "A value that is meant for one key is written to another one.",
    ),
    _mutant(
        "Frames of different types are joined",
        _FRAMES,
        " or [array.dtype for array in arrays] != kinds:",
        ":",
        "Numbers of one frame become floats because another one has some.",
    ),
    _mutant(
        "A batch refers to the memory of a frame that a function has returned",
        _FRAMES,
        "pa.array(np.concatenate(arrays), kind, from_pandas=True)",
        "pa.array(np.concatenate(arrays) if len(arrays) > 1 else arrays[0], kind, from_pandas=True)",
        "A function that uses its frame again changes rows that have left it.",
    ),
    _mutant(
        "Numbers of another type are taken over by their bits",
        _FRAMES,
        "if any(not isinstance(array, np.ndarray) or array.dtype != dtype for array in arrays):",
        "if any(not isinstance(array, np.ndarray) for array in arrays):",
        "PySpark has an error for them, or another rounding.",
    ),
    _mutant(
        "Frames are cut by parts that this version of pandas does not have",
        _FRAMES,
        "    return cut_by_blocks if is_same else cut_by_position\n",
        "    return cut_by_blocks\n",
        "Every processor fails at its first record.",
    ),
    Mutant(
        "Keys are stored as the function sees them, whatever their type",
        OWN,
        _CURSOR,
        "        return tuples if is_as_seen else list(map(self.key_type.freeze, tuples))\n",
        "        return tuples\n",
        "A NaN or a time with a zone does not find its state again.",
        seeds=0,
        tests=("tests/unit/operators/keyed/test_by_key.py",),
    ),
    Mutant(
        "A function is called with keys of another subtask",
        OWN,
        _CURSOR,
        "if key_groups and not (self.owned.start <= min(key_groups) and max(key_groups) < self.owned.stop):",
        "if False:",
        "I9: their state is lost at the next rescale, or is in two places.",
        seeds=0,
        tests=("tests/unit/operators/keyed/test_by_key.py",),
    ),
    _mutant(
        "A large list becomes one block, however large",
        "state/rows/base.py",
        "                    yield from block.parts()\n",
        "                    yield block\n",
        "The mailbox waits for the interpreter while it is converted.",
    ),
    _mutant(
        "A batch of another process keeps the types that it has guessed",
        _FORMATS,
        "        if known is None or batch.schema.equals(known):\n            return self.guard.check(batch)\n",
        "        return self.guard.check(batch)\n",
        "Fields that a batch does not have, and whole numbers among others, are errors that threads do not have.",
    ),
    _mutant(
        "Processes do not compare the zones of their times",
        _FORMATS,
        "        self._zones.agree(zones)\n",
        "",
        "Times of another zone are hours off.",
    ),
    # --- map_async ---
    _mutant(
        "A result that waits behind a slower one is not in the state",
        _ASYNC,
        "self._unkeyed.put([job.batch for job in jobs if job.is_unkeyed])",
        "self._unkeyed.put([job.batch for job in jobs if job.is_unkeyed and not job.done.is_set()])",
        "I1: it has not been emitted, so after a failure its records are nowhere.",
    ),
    _mutant(
        "A batch that waits for a thread is not in the state",
        _ASYNC,
        "self._unkeyed.put([job.batch for job in jobs if job.is_unkeyed])",
        "self._unkeyed.put([job.batch for job in jobs if job.is_unkeyed and job.is_started])",
        "I1: sources have passed it, so after a failure its records are nowhere.",
    ),
    _mutant(
        "The last batch in hand stays in the state after its result was emitted",
        _ASYNC,
        "        self._unkeyed.put([job.batch for job in jobs if job.is_unkeyed])\n",
        "        if jobs:\n            self._unkeyed.put([job.batch for job in jobs if job.is_unkeyed])\n",
        "I1: it is downstream and in the state, so after a failure it comes twice.",
    ),
    _mutant(
        "Batches that were in hand are not run again",
        _ASYNC,
        "        for batch in self._unkeyed.get():\n            self._take_in_hand(batch, is_unkeyed=True)\n",
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
        "        if not self._state.contains_key((at_ms,)):\n            return\n",
        "",
        "`delete_timer` would do nothing.",
    ),
    _mutant(
        "A timer that sets its own time again is removed after its call",
        _TIMERS,
        "            self._is_set_again = self._keeps_own\n",
        "            self._is_set_again = False\n",
        "A function that sets the same time again has set nothing.",
    ),
    _mutant(
        "A timer that was called stays in the state",
        _TIMERS,
        "        if not (call and self._is_set_again):\n            self._state.remove_key((at_ms,))\n",
        "        if not call:\n            self._state.remove_key((at_ms,))\n",
        "I1: after a restart it is called again.",
    ),
    _mutant(
        "Restored timers wait for the next one that is set",
        _TIMERS,
        "                is_over = self._context.begin_slice()\n        self._look()\n",
        "                is_over = self._context.begin_slice()\n",
        "A key that gets no more records never hears of its timer.",
    ),
    _mutant(
        "A timer earlier than the one waited for is called with that one",
        _TIMERS,
        "not (self._armed_at_ms and self._armed_at_ms[-1] <= self._heap[0][0])",
        "not self._armed_at_ms",
        "It is late by as much as the others are far away.",
    ),
    _mutant(
        "All timers that are due are called in one turn of the mailbox",
        _TIMERS,
        "            if fired == _FIRED_AT_ONCE or is_over():\n                break\n",
        "",
        "I11: barriers and heartbeats wait for as many calls as there are keys.",
    ),
    _mutant(
        "After a portion of timers nobody comes back for the rest",
        _TIMERS,
        "call=True)\n            self._look()\n",
        "call=True)\n"
        "            if not self._heap or self._heap[0][0] > self._context.now_ms():\n"
        "                self._look()\n",
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
        "A watermark overtakes the timers that it makes due",
        _TIMERS,
        "            self._held = watermark\n        return self.is_calling\n",
        "            self._held = watermark\n        return False\n",
        "The records that they emit are late downstream.",
    ),
    _mutant(
        "A watermark that waited for timers is never let go",
        _TIMERS,
        "        if held is not None:\n            self._context.release_watermark(held)\n",
        "",
        "Event time stands still downstream.",
    ),
    _mutant(
        "A timer for the very time of the watermark waits for the next one",
        _TIMERS,
        "self._heap[0][0] <= watermark and",
        "self._heap[0][0] < watermark and",
        "On Spark it is called.",
    ),
    _mutant(
        "A timer that sets its own time again is called at the same watermark",
        _TIMERS,
        "if self._called is not None and at_ms <= self._called:",
        "if self._called is not None and at_ms < self._called:",
        "There is no end to its calls, and the subtask reads no record any more.",
    ),
    _mutant(
        "Timers of processing time are taken for timers of event time",
        _TIMERS,
        "            if next(state.keys_held(), None) is not None:\n",
        "            if False:\n",
        "They would be dropped without a word.",
    ),
    _mutant(
        "The end of input makes timers due like a watermark",
        _TIMERS,
        "        if watermark == MAX_WATERMARK:\n            return False\n",
        "        if watermark == MAX_WATERMARK:\n            self._look()\n            return True\n",
        "The watermark of the end would be held back.",
    ),
    _mutant(
        "A state may be asked for while records are worked on",
        _ACCESS,
        "        if self.is_open and name not in self._asked:\n",
        "        if False:\n",
        "I8: after the first failure the checkpoint has a state that nobody asks for.",
    ),
    _mutant(
        "The initial state is applied again after every failure",
        _KEYED,
        "if self.initial_state is not None and self.context.is_new:",
        "if self.initial_state is not None:",
        "I1: what it holds counts twice.",
    ),
    _mutant(
        "Every subtask takes the whole initial state",
        _ACCESS,
        "np.flatnonzero((groups >= owned.start) & (groups < owned.stop))",
        "np.flatnonzero(groups >= 0)",
        "I9: a key would have it in more than one subtask.",
    ),
    _mutant(
        "Times are shown in UTC and not in the zone of the session",
        _VALUES,
        "pc.local_timestamp(column.cast(pa.timestamp(kind.unit, self._zone)))",
        "pc.local_timestamp(column)",
        "On Spark they are in the session's zone.",
    ),
    _mutant(
        "Timers are called at the end although they are to be dropped",
        _TIMERS,
        "self._fire_some(until_ms=None, call=fire)",
        "self._fire_some(until_ms=None, call=True)",
        '`at_end="drop"` would mean nothing.',
    ),
    _mutant(
        "Timers that are dropped at the end stay in the state",
        _TIMERS,
        "            self._fire_some(until_ms=None, call=fire)\n",
        "            if fire:\n"
        "                self._fire_some(until_ms=None, call=True)\n"
        "            else:\n"
        "                self._heap.clear()\n",
        "A pipeline that starts again from its end calls them.",
    ),
    # --- records in hand that have a key ---
    _mutant(
        "Batches in hand that have a key are not in the state",
        _ASYNC,
        "self._keyed.put([job.batch for job in jobs if not job.is_unkeyed])",
        "self._keyed.put([])",
        "I1: sources have passed them, so after a failure their records are nowhere.",
    ),
    _mutant(
        "Batches in hand that have a key are not run again",
        _ASYNC,
        "for batch in () if self._keyed is None else self._keyed.get():",
        "for batch in ():",
        "I1: they were in the state and nowhere else.",
    ),
    _mutant(
        "Records in hand are dealt out without regard to their key",
        _ASYNC,
        "self._take_in_hand(batch, is_unkeyed=self._keyed is None)",
        "self._take_in_hand(batch, is_unkeyed=True)",
        "I9: after a rescale another subtask than the owner of the key has them.",
    ),
    # --- a time to live ---
    _mutant(
        "A value that has expired stays in the checkpoint",
        _EXPIRING,
        "            is_alive = self.exists()\n",
        "            row = self._state.get()\n            is_alive = row is not None and self._lives(row)\n",
        "State grows with all keys that there have ever been.",
    ),
    _mutant(
        "A list that has expired stays in the checkpoint",
        _EXPIRING,
        "            if not is_alive:\n                self._living()\n",
        "",
        "State grows with all keys that there have ever been.",
    ),
    _mutant(
        "An entry that has expired stays in the checkpoint",
        _EXPIRING,
        "                is_alive = self.contains_key(user_key)\n",
        "                is_alive = self._state.contains_key(user_key)\n",
        "State grows with all keys that there have ever been.",
    ),
    _mutant(
        "Expired state is swept once",
        _EXPIRING,
        "            self._context.call_at(max(self._began_ms + self._round_ms, now_ms + _STEP_MS), self._begin)\n"
        "            return\n",
        "            return\n",
        "Keys that come later and never again stay in the state.",
    ),
    _mutant(
        "A sweep looks at all keys in one turn of the mailbox",
        _EXPIRING,
        "seen = list(itertools.islice(self._round, _SWEPT_AT_ONCE))",
        "seen = list(self._round)",
        "I11: barriers and heartbeats wait for as many looks as there are keys.",
    ),
    _mutant(
        "State that has expired is returned until a sweep comes by",
        _EXPIRING,
        "        if row is not None and not self._lives(row):\n            self._state.clear()\n",
        "        if False:\n            self._state.clear()\n",
        "A value lives up to half as long again as it was to.",
    ),
)
