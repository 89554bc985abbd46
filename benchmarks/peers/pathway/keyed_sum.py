"""Rows per second of Pathway on the KeyedSum work: a sum and a count by key, with persistence every second.

Records come from CSV files, which Pathway reads without Python: rows that are handed over one by one in Python are far
slower. `net` is from the start of the run to its end, so that the reading of the files is in it, as for Spark.
"""
import os, sys, tempfile, time

workers, rows = int(sys.argv[1]), int(sys.argv[2])
os.environ.update(PATHWAY_THREADS=str(workers))
import numpy as np, pandas as pd, pathway as pw

KEYS = 10_000
number = np.arange(rows, dtype=np.uint64)
mixed = number * np.uint64(0x9E3779B97F4A7C15)
table = pd.DataFrame({"k": (mixed >> np.uint64(40)) % np.uint64(KEYS), "v": (mixed & np.uint64(1023)).astype(float), "n": number // np.uint64(1000)})


class Record(pw.Schema):
    k: int
    v: float
    n: int


newest = {}


def on_change(key, row, time, is_addition):
    if is_addition:
        newest[row["k"]] = row["rows"], row["total"]


with tempfile.TemporaryDirectory() as root:
    os.makedirs(f"{root}/in")
    for part in range(8):
        table.iloc[rows * part // 8 : rows * (part + 1) // 8].to_csv(f"{root}/in/{part}.csv", index=False)
    records = pw.io.csv.read(f"{root}/in", schema=Record, mode="static")
    sums = records.groupby(records.k).reduce(records.k, total=pw.reducers.sum(records.v), rows=pw.reducers.count())
    pw.io.subscribe(sums, on_change=on_change)
    persistence = pw.persistence.Config(pw.persistence.Backend.filesystem(f"{root}/state"), snapshot_interval_ms=1000)
    began = time.time()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=persistence)
    net = time.time() - began
found = sum(count for count, _ in newest.values()), sum(total for _, total in newest.values())
right = found == (rows, float(table.v.sum()))
print(f"pathway sum p={workers} rows={rows} rate={rows / net / 1e6:.3f}M/s net={net:.3f}s {'verified' if right else f'WRONG: {found}'}")
sys.exit(not right)
