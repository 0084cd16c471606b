"""Checks every table of a lake against the store's file, without durabus and without Spark."""

import re
from collections.abc import Callable

from tests.pipeline.recomputed import activity, gold, ops, silver
from tests.pipeline.recomputed.files import Files

CHECKS: dict[str, Callable[[Files], None]] = {
    "bronze.event_log": silver.check_bronze,
    "bronze.quarantine": silver.check_bronze_quarantine,
    "silver.events": silver.check_events,
    "silver.attempts": silver.check_attempts,
    "silver.quarantine": silver.check_quarantine,
    "gold.activity": activity.check_activity,
    "gold.hourly_counters_v1": gold.check_hourly_counters,
    "gold.stale_workers": gold.check_stale_workers,
    "gold.slos": gold.check_slos,
    "ops.runs": ops.check_runs,
    "ops.gaps": ops.check_gaps,
    "ops.expectations": ops.check_expectations,
    "ops.proofs": ops.check_proofs,
}
OF_ENTITY = {"latest": gold.check_latest, "journeys": gold.check_journeys}


def check_lake(files: Files) -> list[str]:
    """Compute every table of the lake once more, and return their names. It raises for a table without a check."""
    tables = files.tables()
    for table in tables:
        of_entity = re.fullmatch(r"gold\.(latest|journeys)_(\w+)_v1", table)
        if table in CHECKS:
            CHECKS[table](files)
        elif of_entity:
            OF_ENTITY[of_entity[1]](files, table, of_entity[2])
        else:
            assert table.startswith("silver."), f"no check computes {table}"
            silver.check_typed(files, table)
    return tables
