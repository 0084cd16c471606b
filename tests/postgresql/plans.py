"""The plans that a server really used, of statements inside functions too, as its module auto_explain logs them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from durabus.stores.postgresql.store import PostgreSQLStore

TELL = (
    "LOAD 'auto_explain'",
    "SET auto_explain.log_min_duration = 0",
    "SET auto_explain.log_analyze = on",
    "SET auto_explain.log_timing = off",
    "SET auto_explain.log_nested_statements = on",
    "SET auto_explain.log_format = json",
    "SET client_min_messages = log",
)
HUSH = ("SET auto_explain.log_min_duration = -1", "RESET client_min_messages")


class Plan(msgspec.Struct):
    """One statement as it was executed."""

    text: str
    tree: dict[str, Any]
    compiled: bool

    @property
    def nodes(self) -> Iterator[dict[str, Any]]:
        """Yield all steps, the outermost first."""
        waiting = [self.tree]
        while waiting:
            node = waiting.pop(0)
            yield node
            waiting += node.get("Plans", [])

    def indexes(self, table: str) -> set[str]:
        """Return the indexes by which it read a table; ``whole`` if it read all of it."""
        read = [node for node in self.nodes if "Scan" in node["Node Type"] and node.get("Relation Name") == table]
        parts = [part for node in read for part in [node, *node.get("Plans", ())]]  # a bitmap names its index below
        whole = {"whole" for node in read if node["Node Type"] == "Seq Scan"}
        return whole | {part["Index Name"] for part in parts if "Index Name" in part}

    def rows(self, table: str) -> float:
        """Return how many rows of a table it read."""
        return float(
            sum(
                (node.get("Actual Rows", 0) + node.get("Rows Removed by Filter", 0)) * node.get("Actual Loops", 1)
                for node in self.nodes
                if "Scan" in node["Node Type"] and node.get("Relation Name") == table
            )
        )


def plan_of(message: str) -> Plan | None:
    """Return the plan in a line of the server's log, or None."""
    if not message.startswith("duration:"):
        return None
    told = msgspec.json.decode(message.partition("plan:\n")[2])
    return Plan(told["Query Text"], told["Plan"], "JIT" in told)


@asynccontextmanager
async def plans_of(store: PostgreSQLStore) -> AsyncIterator[list[Plan]]:
    """Yield a list that collects the plans of what a store with one connection does in the context."""
    pool, plans = store._pool, list[Plan]()
    assert pool

    def listen(_: object, message: Any) -> None:
        plan = plan_of(message.message)
        if plan is not None:
            plans.append(plan)

    connection = await pool.take()
    for statement in TELL:
        await connection.execute(statement)
    connection.add_log_listener(listen)
    pool.give_back(connection)
    yield plans
    assert await pool.take() is connection, "the store used more than one connection"
    for statement in HUSH:
        await connection.execute(statement)
    connection.remove_log_listener(listen)
    pool.give_back(connection)
