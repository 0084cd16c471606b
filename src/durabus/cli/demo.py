"""``durabus demo``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter


async def demo(
    *,
    orders: Annotated[int, Parameter(help="Orders to place; each becomes about three events.")] = 3000,
    keep: Annotated[
        bool, Parameter(help="Keep the folder with the database and print its path.", negative="", show_default=False)
    ] = False,
    json: Annotated[bool, Parameter(help="Print the report as JSON.", negative="", show_default=False)] = False,
) -> int:
    """Watch a small shop on SQLite survive failing handlers and a worker killed with kill -9, in about half a minute.

    Example: durabus demo --orders 1000 --keep
    """
    from durabus.demo.run import DemoOptions, run_demo

    return await run_demo(DemoOptions(orders=orders, keep=keep, json=json))
