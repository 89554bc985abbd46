"""Spark Structured Streaming: Kafka → Delta, micro-batches as fast as they come, until it is killed.

What it is measured by is the table: an independent reader sees when a version of it exists.
"""
import re, sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession, functions as F

servers, read, table, checkpoints, cores, jars = *sys.argv[1:5], int(sys.argv[5]), sys.argv[6]
def artifact(jar): return re.sub(r"-\d[\w.]*(-\w+)?\.jar$", "", jar.name)
# What Spark has itself, in its own version, is left out.
there = {artifact(jar) for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
extra = ",".join(str(jar) for jar in Path(jars).glob("*.jar") if artifact(jar) not in there)
spark = (SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false").config("spark.driver.memory", "4g")
         .config("spark.jars", extra).config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
         .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
         .config("spark.sql.shuffle.partitions", cores)
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
print(f"spark-ss {pyspark.__version__}", flush=True)
s = (spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", read)
     .option("startingOffsets", "earliest").load()
     .select(F.from_json(F.col("value").cast("string"), "n long, due long, pad string").alias("e")).select("e.n", "e.due"))
q = s.writeStream.format("delta").option("checkpointLocation", checkpoints).trigger(processingTime="0 seconds").start(table)
q.awaitTermination()
