"""A schema for many tests: to make one takes longer than most of them."""

from uuid import uuid4

import psycopg

TABLES = (
    *("events", "dead_letters", "published", "event_log", "idempotency_keys", "event_results", "locks"),
    *("event_buses", "event_handlers", "processes", "positions", "event_counts", "event_count_notes"),
)
END_WITHIN = 10_000
OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def empty(connection: psycopg.Connection, schema: str) -> None:
    """Empty the tables of the schema, if it exists."""
    if connection.execute("SELECT to_regnamespace(%s)", [schema]).fetchone() != (None,):
        connection.execute("; ".join(f"DELETE FROM {schema}.{table}" for table in TABLES).encode())


class EmptiedDatabase:
    """A database whose first test makes the schema, and in which every test finds it empty and is alone."""

    def __init__(self, server_url: str) -> None:
        name = f"emptied_{uuid4().hex}"
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        self.url = f"{server_url.rpartition('/')[0]}/{name}"
        self._connection = psycopg.connect(self.url, autocommit=True)

    def empty(self) -> None:
        """End the connections of processes that the last test killed, then delete all rows.

        A connection that ends by itself in the meantime makes ``pg_terminate_backend`` return false. So only a
        connection that is still there counts as one that did not end.
        """
        self._connection.execute(f"SELECT pg_terminate_backend(pid, {END_WITHIN}) {OTHERS}".encode())
        left = self._connection.execute(f"SELECT pid, state, query {OTHERS}".encode()).fetchall()
        assert not left, f"these connections did not end within {END_WITHIN} ms: {left}"
        empty(self._connection, "durabus")

    def close(self) -> None:
        """Close the connection. The server and its databases end with the run."""
        self._connection.close()
