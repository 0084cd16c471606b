"""Applies numbered migrations under an advisory lock, and compares their checksums and objects with the schema."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

import asyncpg
import msgspec

from durabus.errors import SchemaError, StoreError, StoreUnavailableError
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.connection import Connection, connect, let_go
from durabus.stores.postgresql.log_partitions import DAYS_AHEAD
from durabus.stores.postgresql.sql import Statements

_NAME = re.compile(r"(\d{4})_\w+\.sql")
_SHOWN = 2000
_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended($1, 2))"


class PostgreSQLMigration(msgspec.Struct, frozen=True, kw_only=True):
    """One migration: the step and its reversal."""

    number: int
    name: str
    up: str
    down: str

    @property
    def checksum(self) -> str:
        """The checksum of the step alone: its reversal may change later."""
        return hashlib.sha256(self.up.encode()).hexdigest()


@cache
def migrations() -> tuple[PostgreSQLMigration, ...]:
    """Return all steps of this version, in order."""
    folder = files(__package__).joinpath("migrations")
    steps = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        number = _NAME.fullmatch(file.name)
        if number:
            name = file.name.removesuffix(".sql")
            down = folder.joinpath(f"{name}.down.sql").read_text(encoding="utf-8")
            steps.append(
                PostgreSQLMigration(number=int(number[1]), name=name, up=file.read_text(encoding="utf-8"), down=down)
            )
    return tuple(steps)


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
    missing = [step.name for step in migrations() if step.number not in done]
    if missing:
        raise SchemaError(f"{address.shown}: the schema lacks {', '.join(missing)}: run `durabus db migrate`")
    rows = await connection.fetch(_sql(address)["changed_objects"], address.schema)
    for kind, name, expected, actual in rows:
        if expected is None:
            continue  # an added index or table does no harm
        if actual is None:
            raise SchemaError(f"{address.shown}: {kind} {name} is missing: {_REMEDY}")
        now = " ".join(actual.split())[:_SHOWN]
        raise SchemaError(f"{address.shown}: {kind} {name} is not the one durabus made, it is now `{now}`: {_REMEDY}")


_REMEDY = "restore a backup, or create it again as in durabus/stores/postgresql/migrations"


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
    known = {step.number: step for step in migrations()}
    for number, step, checksum, _ in rows:
        if number not in known:
            raise SchemaError(
                f"{address.shown} was made by a newer durabus (its schema has {step}, this one knows {len(known)} "
                "steps): upgrade durabus in this process"
            )
        if checksum != known[number].checksum:
            raise SchemaError(
                f"{address.shown}: step {step} was applied in another form than this durabus has: install the durabus "
                "that made the schema, or start with a new one (?schema=…)"
            )
    return [row[0] for row in rows]


async def _run(connection: Connection, script: str, step: PostgreSQLMigration, address: PostgreSQLAddress) -> None:
    try:
        await connection.execute(script)
    except (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError) as error:
        raise SchemaError(
            f"{address.shown}: {error}, but durabus did not make it ({step.name} is not applied): give durabus a "
            "schema of its own (?schema=…), or rename that table"
        ) from error


def _sql(address: PostgreSQLAddress) -> Statements:
    return Statements(address.schema)
