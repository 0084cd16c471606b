"""One run of the pipeline as a job of its own. Nothing here names a master, a host or a jar: spark-submit does.

::

    spark-submit --driver-class-path "$(python -m durabus.pipeline.jars)" examples/pipeline_submit.py URL LAKE [PART]

PART is what to run: archive, project, analyze, or all of it (the default). So a scheduler can archive often and analyze
seldom.

On a cluster, ``--packages`` with the coordinates of ``jars.lock`` takes the place of the class path; the store must be
one that the executors reach, and the lake a path that they can write.
"""

import sys

from pyspark.sql import SparkSession

from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import hourly_counters
from durabus.pipeline.run import Pipeline, PipelinePart
from durabus.pipeline.session import CONF


def main() -> None:
    url, place, *part = sys.argv[1:]
    builder = SparkSession.builder.appName("durabus pipeline")
    for key, value in CONF.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    lake = Lake(spark, place)
    Pipeline(lake, url, [hourly_counters()]).run(*map(PipelinePart, part))
    for row in lake.read("bronze.event_log").groupBy("action").count().orderBy("action").collect():
        print(f"{row['action']}: {row['count']}")
    spark.stop()


if __name__ == "__main__":
    main()
