"""Defects of starting: taking a directory over, and checkpoints that are copied out and brought in."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_EXPORT = "runtime/export.py"
_TAKEOVER = "runtime/takeover.py"


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    tests = {
        _EXPORT: ("tests/unit/runtime/test_export.py",),
        _TAKEOVER: (
            "tests/unit/runtime/test_takeover.py",
            "tests/unit/runtime/test_takeover_output.py",
            "tests/unit/runtime/test_supervisor.py",
        ),
    }
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests[file])


_COPIED = '        moved[path] = f"{paths.blob_prefix(takeover.first)}g{takeover.generation}-imported-{number}-state"\n'

MUTANTS = (
    # --- copies ---
    _mutant(
        "A checkpoint is brought in without being verified",
        _EXPORT,
        "    verify(source, manifest)\n    takeover",
        "    takeover",
        "I8: a damaged one becomes the newest, and is found out when the pipeline has been started on it.",
    ),
    _mutant(
        "Verifying looks at operator state and not at records in flight",
        _EXPORT,
        "    for segment in segments_of(manifest):\n        verify_segment(store, segment)\n",
        "    for report in manifest.reports:\n        for state in report.states:\n"
        "            verify_segment(store, state.segment)\n",
        "I8: damaged channel state is found out when it is consumed.",
    ),
    _mutant(
        "The manifest of a savepoint copy is written before its blobs",
        _EXPORT,
        "    manifest = read_manifest(store, checkpoint)\n    for path in sorted(blobs_of(manifest)):\n",
        "    manifest = read_manifest(store, checkpoint)\n"
        "    to.create(paths.manifest(checkpoint), encode_manifest(manifest))\n"
        "    for path in sorted(blobs_of(manifest)):\n",
        "I3: a copy that is interrupted passes for a savepoint.",
    ),
    _mutant(
        "The manifest of a checkpoint that is brought in is written before its blobs",
        _EXPORT,
        "    moved: dict[str, str] = {}\n    for number, path in enumerate(sorted(blobs_of(manifest))):\n"
        + _COPIED
        + "        store.write(moved[path], [source.read(path)])\n"
        "    is_committed = paths.committed(checkpoint) in source.list(paths.committed(checkpoint))\n"
        "    renamed = _renamed(manifest, takeover.first, moved, keeps_committables=not is_committed)\n"
        "    store.create(paths.manifest(takeover.first), encode_manifest(replace(renamed, "
        "generation=takeover.generation)))\n",
        "    moved: dict[str, str] = {}\n    for number, path in enumerate(sorted(blobs_of(manifest))):\n"
        + _COPIED
        + "    is_committed = paths.committed(checkpoint) in source.list(paths.committed(checkpoint))\n"
        "    renamed = _renamed(manifest, takeover.first, moved, keeps_committables=not is_committed)\n"
        "    store.create(paths.manifest(takeover.first), encode_manifest(replace(renamed, "
        "generation=takeover.generation)))\n"
        "    for path in moved:\n"
        "        store.write(moved[path], [source.read(path)])\n",
        "I3: an import that is interrupted leaves a checkpoint without its blobs as the newest.",
    ),
    _mutant(
        "A savepoint copy does not say that its output was published",
        _EXPORT,
        "    if paths.committed(checkpoint) in store.list(paths.committed(checkpoint)):\n"
        '        to.create(paths.committed(checkpoint), b"{}")\n',
        "",
        "I4: who starts from it publishes the same output under another id.",
    ),
    _mutant(
        "A checkpoint that is brought in keeps output that was published",
        _EXPORT,
        "keeps_committables=not is_committed",
        "keeps_committables=True",
        "I4: an import that is interrupted before its marker publishes it again, under another id.",
    ),
    _mutant(
        "A checkpoint that is brought in leaves behind output that was never published",
        _EXPORT,
        "keeps_committables=not is_committed",
        "keeps_committables=False",
        "I4: its records are in no other checkpoint, and their output is lost.",
    ),
    _mutant(
        "A checkpoint that is brought in keeps the generation that wrote it",
        _EXPORT,
        "encode_manifest(replace(renamed, generation=takeover.generation))",
        "encode_manifest(renamed)",
        "I6: an old driver takes it for an outcome of its own.",
    ),
    _mutant(
        "A checkpoint is brought in beside a driver that is starting",
        _EXPORT,
        "    if not is_ours or confirm(takeover, Directory(store).listing()) is None:\n",
        "    if confirm(takeover, Directory(store).listing()) is None:\n",
        "I6: both write the outcome of the same id.",
    ),
    _mutant(
        "A savepoint that was brought in is kept as one",
        _EXPORT,
        "reports=reports, is_savepoint=False)",
        "reports=reports)",
        "Retention never removes it, and nobody owns it.",
    ),
    _mutant(
        "Records in flight of a checkpoint that is brought in stay where they were",
        _EXPORT,
        "channels=tuple(replace(channel, segment=at(channel.segment)) for channel in report.channels),",
        "channels=report.channels,",
        "I3: the manifest names blobs of another directory.",
    ),
    _mutant(
        "Of a path with several checkpoints the oldest is brought in",
        _EXPORT,
        "return source, found[-1]",
        "return source, found[0]",
        "The pipeline goes back further than anybody asked for.",
    ),
    # --- taking over ---
    _mutant(
        "A driver that restarts takes back what another one owns",
        _TAKEOVER,
        "if former is not None and is_fenced(listing, former):",
        "if former is not None and former < 0:",
        "I6: two drivers fence each other in turns, for ever.",
    ),
    _mutant(
        "A driver hears of its new generation when the takeover is confirmed",
        _TAKEOVER,
        "        reserved(takeover.generation)\n        # While we looked",
        "        # While we looked",
        "What fails in between is taken for another driver's generation at the next try, and the pipeline ends.",
    ),
    _mutant(
        "A checkpoint of another pipeline counts as damaged",
        _TAKEOVER,
        "            return Candidate(checkpoint, Foreign(str(error)), has_committables)\n",
        "            return Candidate(checkpoint, Damaged(str(error)), has_committables)\n",
        "I8: an older one that happens to fit is restored instead.",
    ),
    _mutant(
        "A takeover trusts the manifest and reads no blob",
        _TAKEOVER,
        "            for segment in segments_of(outcome):\n                verify_segment(self._store, segment)\n",
        "            pass\n",
        "I8: a damaged checkpoint is found out by the workers, at every attempt, and none older is tried.",
    ),
    _mutant(
        "A damaged checkpoint is passed over although its output may be published",
        _TAKEOVER,
        "            return Candidate(checkpoint, Damaged(str(error)), has_committables)\n"
        "        return Candidate(checkpoint, Valid()",
        "            return Candidate(checkpoint, Damaged(str(error)), False)\n"
        "        return Candidate(checkpoint, Valid()",
        "I4: what it published is published again.",
    ),
    _mutant(
        "A manifest that cannot be read counts as none",
        _TAKEOVER,
        "            return Candidate(checkpoint, Damaged(str(error)))\n",
        "            return None\n",
        "I8: with the only one damaged the pipeline starts from nothing.",
    ),
    _mutant(
        "Output of the restored checkpoint counts as published",
        _TAKEOVER,
        "is_committed=checkpoint in committed)",
        "is_committed=True)",
        "I4: after a crash between manifest and commit it is never published.",
    ),
    _mutant(
        "State of operators that are gone is dropped without being asked",
        _TAKEOVER,
        "check_fits(manifest, shape, options.allow_dropped_state)",
        "check_fits(manifest, shape, True)",
        "I8: an operator that was renamed by mistake starts with empty state.",
    ),
    _mutant(
        "Whether a sink commits is not asked when a checkpoint is passed over",
        _TAKEOVER,
        "has_committing_sinks=has_committing_sinks, fall_back",
        "has_committing_sinks=False, fall_back",
        "I4: a checkpoint whose manifest cannot be read may have published its output.",
    ),
    _mutant(
        "A lost race for a directory is an end",
        _TAKEOVER,
        "        if not created:\n            continue\n",
        "        if not created:\n            break\n",
        "A driver that restarts while another one looks around gives up at once.",
    ),
)
