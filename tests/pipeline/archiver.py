"""A process that archives until it is killed, or once: ``python -m tests.pipeline.archiver URL LAKE [once]``."""

import sys

from durabus.pipeline.archive import Archive
from durabus.pipeline.lake import Lake
from durabus.pipeline.session import spark_session


def main() -> None:
    url, place, *once = sys.argv[1:]
    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    lake = Lake(spark_session(master="local[2]", conf=quick), place)
    # Small batches make many moments to die in; the last run only has to end.
    archive = Archive(lake, url) if once else Archive(lake, url, rows_per_batch=60)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    archive.run()
    while not once:
        archive.run()


if __name__ == "__main__":
    main()
