"""A schema for many tests: to make one takes longer than most of them."""

import psycopg

TABLES = (
    *("events", "dead_letters", "published", "event_log", "idempotency_keys", "event_results", "locks"),
    *("event_buses", "event_handlers", "positions", "event_counts", "event_count_notes"),
)


def empty(connection: psycopg.Connection, schema: str) -> None:
    """As it was made, if it was made yet."""
    if connection.execute("SELECT to_regnamespace(%s)", [schema]).fetchone() != (None,):
        connection.execute("; ".join(f"DELETE FROM {schema}.{table}" for table in TABLES).encode())
