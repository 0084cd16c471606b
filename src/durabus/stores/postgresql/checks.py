"""Checks of ``durabus doctor``: whether the server or the schema can lose events or become slow."""

from __future__ import annotations

from durabus.errors import SchemaError
from durabus.model.log_entry import HELD_AFTER, LogHold
from durabus.store.checks import Finding, Level
from durabus.stores.postgresql import schema
from durabus.stores.postgresql.address import PostgreSQLAddress, parse_url
from durabus.stores.postgresql.connection import DRIVER_ERRORS, Connection, connect, let_go, store_error
from durabus.stores.postgresql.layout import Statements

LONG_TRANSACTION = 600.0
NEEDED: dict[str, tuple[str, Level, str]] = {
    "fsync": ("on", "error", "a crash of the host may damage the whole database: set it on"),
    "full_page_writes": ("on", "error", "a crash of the host may damage pages: set it on"),
    "autovacuum": ("on", "error", "claimed events leave dead rows behind, so claims get slower every hour: set it on"),
    "track_counts": ("on", "error", "autovacuum does not know where to work without it: set it on"),
}
COMMIT_ADVICE = {
    "off": "a crash of the server may lose the newest acknowledged events: set it on, for this user at least",
    "local": "a failover to a standby may lose the newest acknowledged events: set it on",
    "remote_write": "a standby has it in memory, not on its disk: a crash of both hosts may lose the newest events",
}
SETTINGS = "SELECT name, setting FROM pg_settings WHERE name = ANY($1)"
STANDBYS = "SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_stat_replication"
OLDEST_TRANSACTION = """
SELECT coalesce(extract(epoch FROM max(now() - xact_start)), 0)::float8 FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL
"""
PREPARED = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"


async def examine(url: str) -> list[Finding]:
    """Check the server's settings, its standbys, the schema, and transactions that hold the log back."""
    address = parse_url(url)
    connection = await connect(address)
    try:
        return [
            *_presence(address),
            *await _settings(connection),
            *await _replicas(connection),
            *await _schema(connection, address),
            *await _transactions(connection),
            *await _hold(connection, address),
        ]
    except DRIVER_ERRORS as error:
        raise store_error(error, address.shown) from error
    finally:
        await let_go(connection)


def _presence(address: PostgreSQLAddress) -> list[Finding]:
    if address.listen:
        return []
    advice = "workers poll, and events of a killed process come back when their lease is over: leave it out, if you can"
    return [Finding(level="note", setting="listen", value="off", advice=advice)]


async def _settings(connection: Connection) -> list[Finding]:
    shown = dict(await connection.fetch(SETTINGS, [*NEEDED, "synchronous_commit"]))
    found = [
        Finding(level=level, setting=name, value=shown[name], advice=advice)
        for name, (wanted, level, advice) in NEEDED.items()
        if shown[name] != wanted
    ]
    commit = shown["synchronous_commit"]
    if commit in COMMIT_ADVICE:
        advice = COMMIT_ADVICE[commit]
        level: Level = "error" if commit == "off" else "warning"
        found.append(Finding(level=level, setting="synchronous_commit", value=commit, advice=advice))
    return found


async def _replicas(connection: Connection) -> list[Finding]:
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        advice = "a standby takes no writes: point the URL at the primary"
        return [Finding(level="error", setting="role", value="standby", advice=advice)]
    standbys, synchronous = (await connection.fetch(STANDBYS))[0]
    if standbys and not synchronous:
        advice = "a failover may lose the newest acknowledged events: name them in synchronous_standby_names"
        return [Finding(level="note", setting="standbys", value=f"{standbys}, none synchronous", advice=advice)]
    return []


async def _schema(connection: Connection, address: PostgreSQLAddress) -> list[Finding]:
    try:
        await schema.verify(connection, address)
    except SchemaError as error:
        return [Finding(level="error", setting="schema", value=address.schema, advice=str(error))]
    return []


async def _transactions(connection: Connection) -> list[Finding]:
    found: list[Finding] = []
    oldest = float(await connection.fetchval(OLDEST_TRANSACTION))
    if oldest > LONG_TRANSACTION:
        advice = "readers of the log wait for it, and vacuum too: see pg_stat_activity, and end it"
        found.append(Finding(level="warning", setting="oldest_transaction", value=f"{oldest:.0f} s", advice=advice))
    prepared = int(await connection.fetchval(PREPARED))
    if prepared:
        advice = "a prepared transaction holds the log back until it ends: see pg_prepared_xacts, and end it"
        found.append(Finding(level="warning", setting="prepared_transactions", value=str(prepared), advice=advice))
    return found


async def _hold(connection: Connection, address: PostgreSQLAddress) -> list[Finding]:
    """Find the transaction that keeps log readers waiting at this moment, if the tables exist."""
    if await connection.fetchval("SELECT to_regnamespace($1)", address.schema) is None:
        return []
    rows = await connection.fetch(Statements(address.schema)["log_hold"], None, HELD_AFTER)
    if not rows:
        return []
    hold = LogHold(**dict(rows[0]))
    advice = f"projections, the pipeline and the dashboard wait for {hold.holder}: commit or end it"
    return [Finding(level="warning", setting="log", value=f"held back for {hold.waiting:.0f} s", advice=advice)]
