"""Checkpoints on an S3 server: create if absent, fencing, multipart, throttling, lost answers, and recovery."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock import FencedError, Pipeline, StorageError
from penstock.storage import open_store
from penstock.storage.object_store import SINGLE_PUT_BYTES_MAX
from penstock.testing import CollectSink, ListSource, run
from tests.object_stores.conftest import Bucket
from tests.object_stores.fault_proxy import Fault
from tests.object_stores.kit import EXPECTED, ROWS, check_that_one_of_two_creates, found, items, totals


def test_of_two_that_create_one_file_at_once_one_succeeds(bucket: Bucket) -> None:
    check_that_one_of_two_creates(bucket.store(), bucket.store())


def test_a_driver_whose_directory_was_taken_over_stops_with_an_error(bucket: Bucket) -> None:
    output = CollectSink()
    is_taken = False

    def take_over() -> bool:
        """In the middle of the first driver's run, as if that had been cut off."""
        nonlocal is_taken
        if not is_taken and any(request.startswith("PUT") and "manifest" in request for request in bucket.proxy.seen):
            is_taken = True
            run(totals(output), store=bucket.store())
        return False

    with pytest.raises(FencedError, match="taken"):
        run(totals(CollectSink()), store=bucket.store(), until=take_over)
    assert is_taken
    assert found(output) == EXPECTED


def test_a_large_blob_is_uploaded_in_parts_and_read_back_whole_and_in_ranges(bucket: Bucket) -> None:
    store = bucket.store()
    large = bytes(range(256)) * (5 * SINGLE_PUT_BYTES_MAX // 2 // 256)
    path = "checkpoints/0000000001/state"
    store.write(path, [large[:1000], memoryview(large)[1000:]])
    parts = {request for request in bucket.proxy.seen if request.startswith("PUT") and "partNumber=" in request}
    assert len(parts) >= 3
    assert store.read(path) == large
    assert store.read(path, 12_345_678, 1000) == large[12_345_678:12_346_678]


def test_an_upload_that_fails_in_the_middle_leaves_no_file(bucket: Bucket) -> None:
    store = open_store(bucket.url, storage_options={**bucket.options, "config_kwargs": NO_RETRIES})
    bucket.proxy.plan = lambda number, method, path: "throttle" if "partNumber=2" in path else None
    path = "checkpoints/0000000001/state"
    with pytest.raises(StorageError, match="cannot write"):
        store.write(path, [bytes(3 * SINGLE_PUT_BYTES_MAX)])
    bucket.proxy.plan = lambda number, method, path: None
    assert store.list("checkpoints/") == []


@pytest.mark.parametrize("fault", ["throttle", "delay"])
def test_a_pipeline_comes_through_throttling_and_slow_answers(bucket: Bucket, fault: Fault) -> None:
    output = CollectSink()
    store = bucket.store()
    bucket.proxy.plan = lambda number, method, path: fault if number % 8 == 0 else None
    run(totals(output), store=store, crash_after_checkpoints=[1, 2], parallelism=2)
    assert found(output) == EXPECTED
    assert bucket.proxy.faults[fault] > 2


def test_a_pipeline_comes_through_answers_that_are_lost_although_the_server_did_it(bucket: Bucket) -> None:
    """A conditional put whose answer is lost is sent again, and told that the file is there: its own."""
    output = CollectSink()
    store = bucket.store()
    bucket.proxy.plan = lambda number, method, path: (
        "lose the answer" if method in ("PUT", "DELETE") and number % 3 == 0 else None
    )
    run(totals(output), store=store, crash_after_checkpoints=[1, 2], parallelism=2)
    assert found(output) == EXPECTED
    assert bucket.proxy.faults["lose the answer"] > 2


def test_a_new_driver_goes_on_where_the_last_one_died(bucket: Bucket) -> None:
    class Died(BaseException):
        pass

    output = CollectSink()

    def die() -> bool:
        if sum(request.startswith("PUT") and "manifest.json" in request for request in bucket.proxy.seen) >= 2:
            raise Died
        return False

    with pytest.raises(Died):
        run(totals(output), store=bucket.store(), until=die)
    before = len(bucket.proxy.seen)
    result = run(totals(output), store=bucket.store())
    assert result.restarts == 0
    assert found(output) == EXPECTED
    assert any("manifest" in request and request.startswith("GET") for request in bucket.proxy.seen[before:])


def test_wrong_buckets_and_servers_are_told_without_secrets(bucket: Bucket) -> None:
    with pytest.raises(StorageError, match="there is no such file or bucket"):
        open_store("s3://gone-for-good/x", storage_options=bucket.options)
    options = {**bucket.options, "endpoint_url": "http://127.0.0.1:1", "secret": "hidden", "config_kwargs": NO_RETRIES}
    with pytest.raises(StorageError, match="cannot write to") as refused:
        open_store(bucket.url, storage_options=options)
    assert "hidden" not in str(refused.value)


NO_RETRIES = {"retries": {"max_attempts": 0}}


def test_delta_tables_in_a_bucket_are_written_exactly_once(bucket: Bucket, tmp_path: Path) -> None:
    from tests.components import required_package

    deltalake = required_package("deltalake")
    from penstock.connectors.delta import DeltaSink, DeltaSource

    options = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        # Not through the proxy, which is in this process: deltalake holds the interpreter while it waits.
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{bucket.proxy.target}",
        "AWS_ALLOW_HTTP": "true",
    }
    url = f"s3://{bucket.name}/table"
    pipeline = Pipeline("to a bucket")
    pipeline.source(ListSource(items(), splits=2), name="rows").sink(
        DeltaSink(url, storage_options=options), name="table"
    )
    run(pipeline, parallelism=2, crash_after_checkpoints=1, store=tmp_path)
    table = deltalake.DeltaTable(url, storage_options=options).to_pyarrow_table()
    assert sorted(table.column("n").to_pylist()) == list(range(ROWS))
    output = CollectSink()
    back = Pipeline("back")
    source = DeltaSource(url, follow=False, splits=2, storage_options=options)
    back.source(source, name="table").sink(output, name="rows")
    run(back)
    assert pa.Table.from_pylist(output.rows()).num_rows == ROWS
