"""Defects of who owns the directory, and of what is kept in it: identity, fencing, retention, integrity."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant
from tests.simulation.scenario import FaultKind

_CLAIMS = "protocol/claims.py"
_RETENTION = "protocol/retention.py"
_RECOVERY = "protocol/recovery.py"

MUTANTS = (
    # --- identity and fencing ---
    Mutant(
        "Checkpoint ids restart at 1 after a restart",
        "001",
        _CLAIMS,
        "first=CheckpointId(listing.newest_checkpoint + 1)",
        "first=CheckpointId(1)",
        "I5: ids only grow, across restarts too.",
    ),
    Mutant(
        "A manifest replaces the outcome that is there",
        OWN,
        "runtime/coordinator.py",
        "            if self._store.create(paths.manifest(checkpoint), encode_manifest(manifest)):\n",
        "            self._store.delete(paths.manifest(checkpoint))\n"
        "            if self._store.create(paths.manifest(checkpoint), encode_manifest(manifest)):\n",
        "I3, I6: a former owner would complete a checkpoint that was declared void.",
        fault=FaultKind.SECOND_DRIVER,
        seeds=60,
    ),
    Mutant(
        "Who takes over does not void what the former owner has begun",
        OWN,
        "runtime/takeover.py",
        "    for checkpoint in takeover.void:\n",
        "    for checkpoint in takeover.void[:0]:\n",
        "I6: the former owner's checkpoint completes after another one was restored.",
        seeds=0,
    ),
    Mutant(
        "A reservation of another generation is taken for one's own",
        OWN,
        "runtime/coordinator.py",
        "is_own = decode_reservation(self._store.read(path)) == reservation",
        "is_own = decode_reservation(self._store.read(path)) is not None",
        "I6: the older of two drivers stops.",
        seeds=0,
    ),
    Mutant(
        "An outcome of another generation is taken for one's own",
        OWN,
        "protocol/coordinator.py",
        "    if outcome.generation != state.generation:\n",
        "    if outcome.generation < 0:\n",
        "I6: the older of two drivers stops; I4: it would commit what no manifest names.",
        fault=FaultKind.SECOND_DRIVER,
        seeds=60,
    ),
    Mutant(
        "A takeover is not confirmed by a second look",
        OWN,
        _CLAIMS,
        "return listing.newest_checkpoint <= takeover.first",
        "return True",
        "I6: a reservation that was spent and forgotten can be created anew.",
        seeds=0,
    ),
    Mutant(
        "A worker takes frames of other generations",
        OWN,
        "runtime/worker.py",
        "        if frame.generation != self.generation:\n",
        "        if frame.generation < 0:\n",
        "I6: records of an older generation reach the state of a newer one.",
    ),
    Mutant(
        "The supervisor takes frames of other generations",
        OWN,
        "runtime/supervisor.py",
        "if coordinator is None or self.phase is not Phase.RUNNING or frame.generation != coordinator.generation:",
        "if coordinator is None or self.phase is not Phase.RUNNING:",
        "I6: the failure of an older generation ends a newer one.",
        seeds=0,
    ),
    Mutant(
        "The coordinator of an attempt that is over goes on deciding",
        OWN,
        "runtime/supervisor.py",
        "        coordinator.stop()\n",
        "",
        "I6: it finds itself fenced by its own successor, and ends the pipeline.",
    ),
    # --- retention ---
    Mutant(
        "Retention deletes blobs that a retained checkpoint refers to",
        OWN,
        _RETENTION,
        "            if blob.path not in reachable and blob.checkpoint not in unreadable and _is_over(blob, horizon)\n",
        "            if blob.checkpoint not in unreadable and _is_over(blob, horizon)\n",
        "I3: the checkpoint has holes.",
    ),
    Mutant(
        "Retention deletes the blobs of the checkpoint in progress",
        OWN,
        _RETENTION,
        "        blob.generation == horizon.generation and blob.checkpoint <= horizon.newest\n",
        "        blob.generation == horizon.generation\n",
        "I3: every blob that a manifest names is there.",
    ),
    Mutant(
        "Retention deletes blobs before the manifests that refer to them",
        OWN,
        "runtime/retire.py",
        "        tuple(map(paths.manifest, decision.manifests)),\n"
        "        tuple(map(paths.committed, decision.committed)),\n"
        "        decision.blobs,\n",
        "        decision.blobs,\n"
        "        tuple(map(paths.manifest, decision.manifests)),\n"
        "        tuple(map(paths.committed, decision.committed)),\n",
        "I3: a crash in between leaves a checkpoint with holes.",
    ),
    Mutant(
        "Retention deletes the checkpoint that was restored from",
        OWN,
        _RETENTION,
        "return frozenset(candidates[: -horizon.retained]) - horizon.in_use",
        "return frozenset(candidates[: -horizon.retained])",
        "Somebody may still be reading it.",
        seeds=0,
    ),
    Mutant(
        "A generation that is fenced deletes files",
        OWN,
        _RETENTION,
        "    if is_fenced(contents.listing, horizon.generation):\n",
        "    if horizon.generation < 0:\n",
        "I6: nothing of an older generation changes anything.",
        seeds=0,
    ),
    Mutant(
        "Retention deletes the reservation that fences a former owner",
        OWN,
        _RETENTION,
        "        if first < reservation.checkpoint < horizon.newest:\n",
        "        if first <= reservation.checkpoint < horizon.newest:\n",
        "I6: an owner that was asleep for a week still has to run into it.",
        seeds=0,
    ),
    # --- integrity ---
    Mutant(
        "Damaged blobs are restored",
        OWN,
        "storage/blob.py",
        "    if crc32 != segment.crc32:\n",
        "    if crc32 < 0:\n",
        "I8: state that cannot be read is an error.",
        seeds=0,
    ),
    Mutant(
        "A directory counts as durable because it exists",
        OWN,
        "storage/local_directories.py",
        "        self.is_durable = parent is None\n",
        "        self.is_durable = True\n",
        "I3: after a power failure a manifest is gone that was said to be there.",
        seeds=0,
        tests=("tests/unit/storage/test_power_failure.py",),
    ),
    Mutant(
        "A delete does not notice that its directory was removed before it was synced",
        OWN,
        "storage/local.py",
        "if each.parent is not None and not self._directories.is_in_place(each)]\n",
        "if each.parent is not None and False]\n",
        "I3: after a power failure a manifest is back whose blobs were deleted.",
        seeds=0,
        tests=("tests/unit/storage/test_power_failure.py",),
    ),
    Mutant(
        "Damaged manifests are read",
        OWN,
        "protocol/manifest_codec.py",
        "    if _digest(envelope.kind, envelope.body) != envelope.sha256:\n",
        '    if envelope.sha256 == "":\n',
        "I8: state that cannot be read is an error.",
        seeds=0,
    ),
    Mutant(
        "Without a readable checkpoint the pipeline begins from nothing",
        OWN,
        _RECOVERY,
        "return Refuse(_nothing_left_text(skipped), tuple(skipped)) if skipped else StartEmpty()",
        "return StartEmpty()",
        "I8: never an empty state.",
        seeds=0,
    ),
    Mutant(
        "Going back past a damaged checkpoint publishes its output again",
        OWN,
        _RECOVERY,
        "if fall_back is FallBack.SAFE and has_committing_sinks and candidate.has_committables is not False:",
        "if fall_back is FallBack.SAFE and not has_committing_sinks and candidate.has_committables is not False:",
        "I4: nothing is published twice unless the user allows it.",
        seeds=0,
    ),
)
