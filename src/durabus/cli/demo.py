"""``durabus demo``: runs a small shop through crashes."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.serve import require_server
from durabus.errors import ServerError


async def demo(
    *,
    store: Annotated[
        Literal["sqlite", "postgresql", "redis", "nats", "kafka"],
        Parameter(help="The store to use. The demo starts and stops the server it needs."),
    ] = "sqlite",
    orders: Annotated[int, Parameter(help="Orders to place; each becomes about three events.")] = 3000,
    keep: Annotated[
        bool, Parameter(help="Keep the folder with the database and print its path.", negative="", show_default=False)
    ] = False,
    json: Annotated[bool, Parameter(help="Print the report as JSON.", negative="", show_default=False)] = False,
    pipeline: Annotated[
        bool,
        Parameter(help="Then run the pipeline on Spark: it makes tables and a page with charts.", show_default=False),
    ] = False,
    stay: Annotated[
        bool,
        Parameter(help="Keep running with new orders, and serve the dashboard.", negative="", show_default=False),
    ] = False,
) -> int:
    """Watch a small shop survive failing handlers and a worker killed with kill -9, in about half a minute.

    Example: durabus demo --orders 1000 --keep
    """
    from durabus.demo.run import DemoOptions, run_demo

    if stay:
        require_server()
    try:
        return await run_demo(
            DemoOptions(store=store, orders=orders, keep=keep, json=json, pipeline=pipeline, stay=stay)
        )
    except ServerError as error:
        raise CommandFailed("no server for the demo", str(error), code=Exit.FAILED) from error
