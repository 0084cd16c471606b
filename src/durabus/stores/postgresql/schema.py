"""Applies numbered migrations under an advisory lock, and compares their checksums and objects with the schema."""

from __future__ import annotations

import asyncpg

from durabus.errors import SchemaError, StoreError, StoreUnavailableError
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.connection import Connection, connect, let_go
from durabus.stores.postgresql.layout import Statements
from durabus.stores.sql.migrations import (
    Migration,
    check_applied,
    damaged,
    not_ours,
    read_migrations,
    refuse_missing,
)

PACKAGE = "durabus.stores.postgresql"
DAYS_AHEAD = 7
"""Number of days for which log partitions are made in advance. Old entries can be dropped as a whole partition."""
PARTITIONS_EVERY = 3600.0
"""Seconds between two checks whether the next partitions exist."""
_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended($1, 2))"


def migrations() -> tuple[Migration, ...]:
    """Return all steps of this version, in order."""
    return read_migrations(PACKAGE)


async def prepare(connection: Connection, address: PostgreSQLAddress, now: float | None) -> str:
    """Install or upgrade the schema if needed, verify it, and return the id of the installation."""
    await _refuse_replica(connection, address)
    await migrate(connection, address)
    await verify(connection, address)
    sql = Statements(address.schema)
    await connection.fetch(sql["make_log_partitions"], now, DAYS_AHEAD)
    return str(await connection.fetchval(sql["installation"]))


async def migrate(connection: Connection, address: PostgreSQLAddress) -> None:
    """Bring the schema up to date. Several processes may start at once: one of them migrates, the others wait."""
    if await _applied(connection, address) == [step.number for step in migrations()]:
        return
    try:
        async with connection.transaction():
            await connection.execute(_ONE_AT_A_TIME, address.schema)
            await _create_schema(connection, address)
            done = await _applied(connection, address)
            for step in migrations():
                if step.number not in done:
                    await _run(connection, step.up, step, address)
                    await connection.execute(
                        "INSERT INTO durabus_migrations (number, name, checksum) VALUES ($1, $2, $3)",
                        step.number,
                        step.name,
                        step.checksum,
                    )
            await connection.execute("DELETE FROM durabus_objects")
            await connection.execute(f"INSERT INTO durabus_objects {_sql(address)['actual_objects']}", address.schema)
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(
            f"{address.shown}: the tables are missing or outdated, and this user may not make them ({error}): run "
            "`durabus db migrate` once as a user that may, as the owner of the database"
        ) from error


async def revert(connection: Connection, address: PostgreSQLAddress, *, to: int = 0) -> None:
    """Revert steps, the newest first, until ``to`` is the newest. This deletes what their tables hold."""
    async with connection.transaction():
        await connection.execute(_ONE_AT_A_TIME, address.schema)
        done = await _applied(connection, address)
        await connection.execute(f'SET LOCAL search_path = "{address.schema}", pg_temp')
        for step in reversed(migrations()):
            if step.number in done and step.number > to:
                await _run(connection, step.down, step, address)
                await connection.execute("DELETE FROM durabus_migrations WHERE number = $1", step.number)
        await connection.execute("DELETE FROM durabus_objects")
        await connection.execute(f"INSERT INTO durabus_objects {_sql(address)['actual_objects']}", address.schema)


async def verify(connection: Connection, address: PostgreSQLAddress) -> None:
    """Compare every table, index, view, sequence and function with what the migrations made."""
    done = await _applied(connection, address)
    refuse_missing(migrations(), done, address.shown, remedy="run `durabus db migrate`")
    rows = await connection.fetch(_sql(address)["changed_objects"], address.schema)
    for kind, name, expected, actual in rows:
        if expected is not None:  # an added index or table does no harm
            raise damaged(address.shown, PACKAGE, kind, name, actual)


async def applied_instants(address: PostgreSQLAddress) -> dict[int, float]:
    """Return when each step was applied, by number. Changes nothing, not even an outdated schema."""
    connection = await connect(address)
    try:
        numbers = await _applied(connection, address)
        rows = await connection.fetch(_sql(address)["applied_migrations"]) if numbers else []
    finally:
        await let_go(connection)
    return {row[0]: row[3] for row in rows}


async def _refuse_replica(connection: Connection, address: PostgreSQLAddress) -> None:
    recovering, read_only = (await connection.fetch(_sql(address)["can_write"]))[0]
    if recovering:
        raise StoreUnavailableError(
            f"{address.shown}: this server is a read-only replica: point the URL at the primary"
        )
    if read_only == "on":
        raise StoreError(
            f"{address.shown}: transactions are read-only for this user or database: "
            "ALTER ROLE … SET default_transaction_read_only = off"
        )


async def _create_schema(connection: Connection, address: PostgreSQLAddress) -> None:
    there = await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", address.schema)
    if there is None:
        await connection.execute(f'CREATE SCHEMA "{address.schema}"')
    # functions keep this path, so that no other table, not even a temporary one, takes the place of ours
    await connection.execute(f'SET LOCAL search_path = "{address.schema}", pg_temp')
    await connection.execute(_sql(address)["create_bookkeeping"])


async def _applied(connection: Connection, address: PostgreSQLAddress) -> list[int]:
    """Return the numbers of the applied steps. Raises for a schema of a newer durabus or with an edited step."""
    name = f'"{address.schema}".durabus_migrations'
    if await connection.fetchval("SELECT to_regclass($1)", name) is None:
        return []
    rows = await connection.fetch(_sql(address)["applied_migrations"])
    anew = "install the durabus that made the schema, or start with a new one (?schema=…)"
    return check_applied(rows, migrations(), address.shown, start_anew=anew)


async def _run(connection: Connection, script: str, step: Migration, address: PostgreSQLAddress) -> None:
    try:
        await connection.execute(script)
    except (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError) as error:
        raise not_ours(address.shown, error, step, remedy="give durabus a schema of its own (?schema=…)") from error


def _sql(address: PostgreSQLAddress) -> Statements:
    return Statements(address.schema)
