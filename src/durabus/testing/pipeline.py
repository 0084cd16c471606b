"""Runs a projection on a few rows, without a store and without a lake, for tests of your own projections.

::

    rows = run_projection(spent, {"silver.events": [{"type": "order.placed", "payload": {"customer": "ann"}}]})
    assert rows == [{"customer": "ann", "orders": 1}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from durabus.errors import ConfigurationError
from durabus.pipeline.projections import Projection
from durabus.pipeline.sample_rows import projected, small_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Sequence[Mapping[str, Any]]


def run_projection(
    projection: Projection,
    inputs: Mapping[str, Rows],
    *,
    schemas: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
) -> list[dict[str, Any]]:
    """Return the rows that a projection makes of these rows of its inputs, in the order of its key.

    - A row of a table of durabus needs only the columns that the projection uses; the others are NULL. Payload,
      metadata and results may be Python values.
    - An event without a status is COMPLETED. One without ``published_at`` or ``ended_at`` gets some instant, but a
      PENDING or PROCESSING one has not ended, so it counts only with ``live=True``.
    - ``schemas`` gives the columns of other inputs, such as ``"currency STRING, rate DOUBLE"``. Without it, they are
      inferred from the rows.
    - Instants in the result are in UTC. Without ``spark``, the first call starts a small session, which ends with the
      process.
    """
    unknown = sorted(set(inputs) ^ set(projection.inputs))
    if unknown:
        raise ConfigurationError(
            f"inputs of {projection.name}: {unknown[0]!r} is given or declared, but not both: give rows for each of "
            f"{', '.join(projection.inputs)}"
        )
    return projected(spark or small_session(), projection, inputs, schemas or {})
