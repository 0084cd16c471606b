"""A process that runs the pipeline again and again until it is killed: ``python -m tests.pipeline.runner URL LAKE``.

It prints each step as it begins, so that the test that kills it knows the step.
"""

import sys

from durabus.pipeline import source
from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import Projection, hourly_counters, journeys, latest_state
from durabus.pipeline.run import Pipeline, PipelinePart
from durabus.pipeline.session import QUICK, spark_session

DELTA_AS_EVER = {name: value for name, value in QUICK.items() if "delta" not in name}
"""Settings for a quick start. Commits and merges are those of an ordinary run."""
SHIPPED: list[Projection] = [hourly_counters(), latest_state("order"), journeys("order")]


class Told:
    """Prints each step to stdout as it begins."""

    def begins(self, step: str, total: int | None) -> None:
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()

    def moves(self, rows: int) -> None:
        pass

    def ends(self, step: str, rows: int, seconds: float) -> None:
        pass


def main() -> None:
    url, place = sys.argv[1:]
    lake = Lake(spark_session(master="local[2]", conf=DELTA_AS_EVER), place)
    # Small pages and batches make more moments to die in: a batch of one page is read without tasks.
    source.ROWS_PER_PAGE = 300
    pipeline = Pipeline(lake, url, SHIPPED, listener=Told(), rows_per_batch=1_000)
    while True:
        pipeline.run(PipelinePart.ARCHIVE)
        pipeline.run(PipelinePart.PROJECT)


if __name__ == "__main__":
    main()
