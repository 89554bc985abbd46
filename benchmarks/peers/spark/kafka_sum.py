"""Spark Structured Streaming: Kafka → keyed sum → Kafka, availableNow. Its sink for Kafka is at least once.

`net` is from the start of the query to its end, which is when its last micro-batch is committed; it includes planning.
"""
import shutil, sys, tempfile, time
from pathlib import Path

from pyspark.sql import SparkSession, functions as F
from pyspark.sql.avro.functions import from_avro

servers, read, write, kind, rows, cores, jars = *sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6]), sys.argv[7]
spark = (SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false").config("spark.driver.memory", "4g")
         .config("spark.sql.shuffle.partitions", cores).config("spark.jars", ",".join(map(str, Path(jars).glob("*.jar"))))
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
root = tempfile.mkdtemp()
schema = ('{"type":"record","name":"Event","fields":[{"name":"k","type":"long"},{"name":"v","type":"long"},{"name":"pad","type":"string"}]}'
          if kind == "avro" else "k long, v long, pad string")
value = from_avro("value", schema) if kind == "avro" else F.from_json(F.col("value").cast("string"), schema)
s = (spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", read)
     .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 500_000).load()
     .select(value.alias("e")).select("e.k", "e.v").groupBy("k").agg(F.sum("v").alias("total"))
     .select(F.col("k").cast("string").alias("key"), F.to_json(F.struct("k", "total")).alias("value")))
t = time.time()
q = (s.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", write).outputMode("update")
     .option("checkpointLocation", f"{root}/c").trigger(availableNow=True).start())
q.awaitTermination()
net = time.time() - t
print(f"\nspark-ss kafka-{kind} p={cores} rows={rows} version={spark.version} rate={rows / net / 1e6:.3f}M/s net={net:.3f}s batches={len(q.recentProgress)}")
spark.stop(); shutil.rmtree(root)
