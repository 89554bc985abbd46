"""Rows per second of Structured Streaming through Python functions: `user_code.py CORES ROWS KIND KEYS`.

The work of `benchmarks/user_code.py`, with the same processors. The records are written as Parquet before, and read with
availableNow, two files a micro-batch; state is in RocksDB. `net` is from the start of the query to its end.
"""
import os, shutil, sys, tempfile, time
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[3])
sys.path.insert(0, ROOT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession, functions as F

from benchmarks.processors import OUTPUT, PandasTotals, RowTotals

cores, rows, kind, keys = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
spark = (SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false").config("spark.sql.ansi.enabled", "false")
         .config("spark.sql.shuffle.partitions", cores).config("spark.driver.memory", "4g")
         .config("spark.sql.streaming.stateStore.providerClass",
                 "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
root = tempfile.mkdtemp()
mixed = F.col("id") * F.lit(0x9E3779B97F4A7C15 - (1 << 64))
(spark.range(0, rows, 1, 8).select((F.shiftrightunsigned(mixed, 40) % keys).alias("k"),
    mixed.bitwiseAND(F.lit(1023)).cast("double").alias("v"), F.expr("id div 1000").alias("n"))
 .write.parquet(f"{root}/in"))
expected = spark.read.parquet(f"{root}/in").agg(F.count("*"), F.sum("v")).first()
s = spark.readStream.schema("k long, v double, n long").option("maxFilesPerTrigger", 2).parquet(f"{root}/in")


def twice(frames):
    for frame in frames:
        yield frame.assign(v=frame["v"] * 2.0)


if kind == "processor":
    s, mode = s.groupBy("k").transformWithStateInPandas(PandasTotals(), OUTPUT, "Update", "None"), "update"
elif kind == "processor-rows":
    s, mode = s.groupBy("k").transformWithState(RowTotals(), OUTPUT, "Update", "None"), "update"
else:
    s, mode = s.mapInPandas(twice, "k long, v double, n long"), "append"
    s = s.observe("out", F.count("*").alias("rows"), F.coalesce(F.sum("v"), F.lit(0.0)).alias("total"))
t = time.time()
q = s.writeStream.format("noop").outputMode(mode).option("checkpointLocation", f"{root}/c").trigger(availableNow=True).start()
q.awaitTermination()
net = time.time() - t
if kind == "map-pandas":
    out = [p.observedMetrics["out"] for p in q.recentProgress if "out" in p.observedMetrics]
    found = sum(o.rows for o in out), sum(o.total for o in out) / 2
else:
    state = spark.read.format("statestore").option("stateVarName", "total").load(f"{root}/c")
    found = tuple(state.agg(F.sum("value.rows"), F.sum("value.total")).first())
right = found == (rows, expected[1])
print(f"\nspark-ss {kind} p={cores} keys={keys} rows={rows} rate={rows / net / 1e6:.4f}M/s net={net:.3f}s batches={len(q.recentProgress)} "
      + ("verified" if right else f"WRONG: {found}, expected {(rows, expected[1])}"))
spark.stop(); shutil.rmtree(root)
sys.exit(not right)
