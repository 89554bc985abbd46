"""Asks one question of an endless stream of events, on local Spark.

    python -m examples.nexmark q5 [EVENTS_PER_SECOND]

Answers are printed with every checkpoint. Ctrl-C stops it.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from examples.nexmark.events import Events
from examples.nexmark.queries import QUERIES
from penstock import ConsoleSink, Pipeline


def main(name: str = "", rate: str = "100000") -> None:
    if name not in QUERIES:
        asked = "\n".join(f"  {each:4} {query.__doc__}" for each, query in QUERIES.items())
        raise SystemExit(f"python -m examples.nexmark QUERY [EVENTS_PER_SECOND]\n{asked}")
    pipeline = Pipeline(f"nexmark {name}")
    QUERIES[name](Events(pipeline, rate=float(rate))).sink(ConsoleSink(rows=5), name="console")
    spark = SparkSession.builder.master("local[2]").appName(pipeline.name).getOrCreate()
    pipeline.start(spark, f"/tmp/nexmark-{name}", parallelism=2, checkpoint_interval=2).wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
