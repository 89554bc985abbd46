"""Defects of exactly-once output: committing, file sinks and their directories, sinks of PySpark."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_COMMITTERS = "driver/checkpoints/committers.py"
_COORDINATOR = "driver/checkpoints/coordinator.py"
_FILE_SINK = "connectors/files/sink.py"
_PLACES = "connectors/files/filesystem.py"
_SPARK_SINK = "connectors/spark/sink.py"


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    files = (
        "tests/unit/connectors/files/test_filesystem.py",
        "tests/unit/connectors/files/test_sink.py",
        "tests/unit/connectors/files/test_power_failure.py",
    )
    tests = {
        _COMMITTERS: (
            "tests/unit/driver/checkpoints/test_publish.py",
            "tests/unit/driver/checkpoints/test_committers.py",
        ),
        _COORDINATOR: ("tests/unit/driver/checkpoints/test_publish.py",),
        _FILE_SINK: files,
        _PLACES: files,
        _SPARK_SINK: (
            "tests/unit/connectors/spark/test_sink_epochs.py",
            "tests/unit/connectors/spark/test_sink.py",
        ),
    }
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests[file])


MUTANTS = (
    # --- committing ---
    _mutant(
        "The output of each subtask is committed on its own",
        _COMMITTERS,
        "            self._committers[sink].commit(permit.batch, payloads)\n",
        "            for payload in payloads:\n"
        "                self._committers[sink].commit(permit.batch, [payload])\n",
        "A sink that knows a batch by its number drops the output of all subtasks but one.",
    ),
    _mutant(
        "A commit that does not answer in time counts as done",
        _COORDINATOR,
        "        except Exception as error:\n            # Committers",
        "        except PenstockError:\n            return lambda now: Committed(checkpoint, now)\n"
        "        except Exception as error:\n            # Committers",
        "I4: it is never tried again.",
    ),
    # --- directories ---
    _mutant(
        "Staged files are not synced",
        _PLACES,
        "            os.fsync(file.fileno())\n",
        "",
        "I3: after a power failure the manifest names files without their bytes.",
    ),
    _mutant(
        "The names of staged files are not synced",
        _PLACES,
        "        self._sync_directory(os.path.dirname(file.name))\n",
        "",
        "I3: after a power failure the manifest names files that are not there.",
    ),
    _mutant(
        "Published files have their names for the moment only",
        _PLACES,
        "        self._sync_directory(os.path.dirname(target))\n",
        "",
        "I4: after a power failure the marker says that they were published, and nobody does it again.",
    ),
    _mutant(
        "A file that is gone cannot be removed",
        _PLACES,
        "        with contextlib.suppress(FileNotFoundError):\n            os.remove(os.path.join(self.root, name))\n",
        "        os.remove(os.path.join(self.root, name))\n",
        "I4: to commit once more, after a crash, fails at every try.",
    ),
    _mutant(
        "An object that is gone cannot be removed",
        _PLACES,
        "        if self.size(name) is not None:\n            self._filesystem.delete_file(",
        "        if True:\n            self._filesystem.delete_file(",
        "I4: to commit once more, after a crash, fails at every try.",
    ),
    # --- files ---
    _mutant(
        "A start removes what its own generation has staged",
        _FILE_SINK,
        "int(match[1]) < generation:",
        "int(match[1]) <= generation:",
        "Writers may be at work already, and their files vanish under them.",
    ),
    _mutant(
        "Half a file that was closed is handed over at the second try",
        _FILE_SINK,
        "        if self._error is not None:\n            # Half",
        "        if False:\n            # Half",
        "Records are missing in what is published.",
    ),
    _mutant(
        "Files that became full before the checkpoint are not handed over",
        _FILE_SINK,
        "        parts = [*self._full, *self._open.values()]\n"
        "        self._full, self._open = [], {}\n        finished",
        "        parts = [*self._open.values()]\n        self._open = {}\n        finished",
        "I1: their records are in front of the cut and are never published.",
    ),
    _mutant(
        "A file goes on behind the cut",
        _FILE_SINK,
        "        self._full, self._open = [], {}\n        finished",
        "        self._full = []\n        finished",
        "I1: records behind the cut are in a file that the checkpoint names.",
    ),
    _mutant(
        "A preparation that failed half way begins anew",
        _FILE_SINK,
        "                if number not in finished:\n                    finished[number] = part.finish()\n",
        "                finished[number] = part.finish()\n",
        "Files that were closed are closed again, and nobody hears of the true cause any more.",
    ),
    _mutant(
        "Files are named by generation, subtask and count alone",
        _FILE_SINK,
        "self._token = secrets.token_hex(4)",
        'self._token = "00000000"',
        "A pipeline with a new checkpoint directory writes over its old output.",
    ),
    _mutant(
        "A file with the final name counts as published whatever is in it",
        _FILE_SINK,
        "        if self._place.size(final) == size:\n",
        "        if self._place.size(final) is not None:\n",
        "A copy that broke off passes for the whole.",
    ),
    _mutant(
        "A staged file is published whatever became of it",
        _FILE_SINK,
        "        elif self._place.size(staged) == size:\n",
        "        elif self._place.size(staged) is not None:\n",
        "I8: a file that lost its end in a crash is published as it is.",
    ),
    _mutant(
        "The final name in a committable is not looked at",
        _FILE_SINK,
        "        if not _STAGED.fullmatch(staged) or not _FINAL.fullmatch(final):\n",
        "        if not _STAGED.fullmatch(staged):\n",
        "A hostile checkpoint moves a file to any place.",
    ),
    _mutant(
        "A copy that was left behind in the staging directory stays there",
        _FILE_SINK,
        "            self._place.remove(staged)\n        elif",
        "            pass\n        elif",
        "Where a move is a copy, each crash leaves a file behind.",
    ),
    _mutant(
        "Files that nobody wants any more stay in the staging directory",
        _FILE_SINK,
        "        self._encoder.discard()\n        self._file.close()\n        self._place.remove(self.staged)\n",
        "        self._encoder.discard()\n        self._file.close()\n",
        "Each stop leaves files behind until another generation starts.",
    ),
    # --- PySpark's data sources ---
    _mutant(
        "`write` is called although there were no records",
        _SPARK_SINK,
        "            if not self._has_rows:\n                return nothing_prepared\n",
        "            if self._schema is None:\n                return nothing_prepared\n",
        "Each checkpoint of an idle pipeline writes and commits an empty file.",
    ),
    _mutant(
        "One writer is used for all calls of `write`",
        _SPARK_SINK,
        "copy.deepcopy(self._made[0]), self._made[1]",
        "self._made[0], self._made[1]",
        "What one call leaves in the object is in the output of the next.",
    ),
    _mutant(
        "Records that `write` leaves over are those of the next checkpoint",
        _SPARK_SINK,
        "        batches.drain()\n        encoded",
        "        encoded",
        "I1: what was in front of the cut is behind it.",
    ),
    _mutant(
        "Checkpoints that wait for a `write` hear nothing of its failure",
        _SPARK_SINK,
        "        for epoch in left:\n            epoch.error = error\n            epoch.is_done.set()\n",
        "        for epoch in left[:1]:\n            epoch.error = error\n            epoch.is_done.set()\n",
        "They wait for their expiry, and keep a background thread for that time.",
    ),
    _mutant(
        "A cut behind a `write` that has failed waits for it",
        _SPARK_SINK,
        "            self._raise_if_failed()\n            if not self._has_rows:\n",
        "            if not self._has_rows:\n",
        "Nobody works on it any more, and the checkpoint waits for its expiry.",
    ),
    _mutant(
        "A writer that has failed wants no input",
        _SPARK_SINK,
        "            return True  # to hear of it in `write`\n",
        "            return False\n",
        "Nobody hears of the failure, and the pipeline stands still.",
    ),
    _mutant(
        "A writer of Spark wants any amount of input",
        _SPARK_SINK,
        "return self._rows_waiting == 0 or (self._rows_waiting < rows_max and self._bytes_waiting < "
        "_BYTES_WAITING_MAX)",
        "return True",
        "I7: what a slow `write` has not taken is held without a bound, and a checkpoint waits for all of it.",
    ),
    _mutant(
        "Bytes that wait for `write` are not looked at",
        _SPARK_SINK,
        "(self._rows_waiting < rows_max and self._bytes_waiting < _BYTES_WAITING_MAX)",
        "self._rows_waiting < rows_max",
        "I7: few rows can be many bytes.",
    ),
    _mutant(
        "A column without nulls in the first batch may never have any",
        _SPARK_SINK,
        "self._schema = _nullable(arrow_schema(spark_schema(batch.schema)))",
        "self._schema = arrow_schema(spark_schema(batch.schema))",
        "The first null ends the pipeline.",
    ),
    _mutant(
        "Columns are taken in the order in which a batch has them",
        _SPARK_SINK,
        "return batch.select(self._schema.names).cast(self._schema)",
        "return pa.RecordBatch.from_arrays(batch.columns, batch.schema.names).cast(self._schema)",
        "Values of one column are written to another, or the pipeline ends.",
    ),
    _mutant(
        "A preparation waits for a writer that is closed",
        _SPARK_SINK,
        "                if self._is_closed:\n                    # Nobody waits",
        "                if self._thread is None:\n                    # Nobody waits",
        "User code that is stuck keeps a background thread for ever.",
    ),
    # --- the way to the output ---
    _mutant(
        "The directories above published files are not synced",
        _PLACES,
        "            self._sync_above(path)\n",
        "",
        "I4: after a power failure the way to the output is gone, and the marker says that it was published.",
    ),
    _mutant(
        "A directory that was made anew counts as synced",
        _PLACES,
        "        if known is None or known.identity != directory.identity:\n",
        "        if known is None:\n",
        "I4: after a power failure the output is gone with its directory.",
    ),
)
