"""Tables are what the migrations make, or the store says what is wrong and what to do."""

import subprocess
import sys

import psycopg
import pytest

from durabus.errors import SchemaError
from durabus.stores.postgresql import schema as schemas
from durabus.stores.postgresql.address import parse_url
from durabus.stores.postgresql.connection import connect
from durabus.stores.postgresql.store import PostgreSQLStore

OBJECTS = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p', 'v', 'S')"


async def opened(url: str) -> PostgreSQLStore:
    store = PostgreSQLStore.from_url(url)
    await store.open()
    return store


async def test_up_verify_down_and_verify_must_fail(url: str, postgresql_url: str, schema: str) -> None:
    address = parse_url(url)
    connection = await connect(address)
    await schemas.migrate(connection, address)
    await schemas.verify(connection, address)
    await schemas.revert(connection, address)
    with pytest.raises(SchemaError, match="lacks 0001_tables"):
        await schemas.verify(connection, address)
    with psycopg.connect(postgresql_url) as admin:
        assert {name for (name,) in admin.execute(OBJECTS, [schema])} == {"durabus_migrations", "durabus_objects"}
    await schemas.migrate(connection, address)
    await schemas.verify(connection, address)
    await connection.close()


async def test_one_step_can_be_taken_back_alone(url: str) -> None:
    address = parse_url(url)
    connection = await connect(address)
    await schemas.migrate(connection, address)
    await schemas.revert(connection, address, to=1)
    with pytest.raises(SchemaError, match="lacks 0002_publishing"):
        await schemas.verify(connection, address)
    await connection.close()
    await (await opened(url)).close()


def test_every_step_has_a_way_back_and_a_number_of_its_own() -> None:
    numbers = [step.number for step in schemas.migrations()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert all(step.down.strip() for step in schemas.migrations())


async def test_when_steps_were_applied_can_be_asked_without_changing_anything(url: str) -> None:
    address = parse_url(url)
    assert await schemas.applied_instants(address) == {}
    await (await opened(url)).close()
    instants = await schemas.applied_instants(address)
    assert sorted(instants) == [step.number for step in schemas.migrations()]


async def test_a_schema_of_a_newer_durabus_is_refused(
    url: str, store: PostgreSQLStore, admin: psycopg.Connection
) -> None:
    admin.execute("INSERT INTO durabus_migrations (number, name, checksum) VALUES (9999, '9999_future', 'x')")
    with pytest.raises(SchemaError, match=r"newer durabus.*9999_future.*upgrade durabus"):
        await opened(url)


async def test_a_step_applied_in_another_form_is_refused(
    url: str, store: PostgreSQLStore, admin: psycopg.Connection
) -> None:
    admin.execute("UPDATE durabus_migrations SET checksum = 'x'")
    with pytest.raises(SchemaError, match="0001_tables was applied in another form"):
        await opened(url)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("DROP INDEX events_fresh", "index events_fresh is missing"),
        ("DROP TABLE idempotency_keys", "table idempotency_keys is missing"),
        ("ALTER TABLE dead_letters ADD COLUMN note text", "table dead_letters is not the one durabus made.*note text"),
        ("DROP VIEW subscriptions", "view subscriptions is missing"),
        ("DROP SEQUENCE lock_fences", "sequence lock_fences is missing"),
        ("DROP FUNCTION complete_events", "function complete_events is missing"),
        (
            "CREATE OR REPLACE FUNCTION the_time(p_now float8) RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
            r"function the_time is not the one durabus made.*SELECT now\(\)",
        ),
    ],
)
async def test_a_damaged_schema_is_named(
    url: str, store: PostgreSQLStore, admin: psycopg.Connection, damage: str, named: str
) -> None:
    await store.verify()
    admin.execute(damage)
    with pytest.raises(SchemaError, match=named):
        await store.verify()
    with pytest.raises(SchemaError, match=named):
        await opened(url)


async def test_what_others_add_does_no_harm(store: PostgreSQLStore, admin: psycopg.Connection) -> None:
    admin.execute("CREATE INDEX reports ON event_log (type)")
    admin.execute("CREATE TABLE customers (id integer PRIMARY KEY)")
    await store.verify()


async def test_a_table_of_ours_that_another_program_made_is_refused(url: str, postgresql_url: str, schema: str) -> None:
    with psycopg.connect(postgresql_url, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {schema}")
        admin.execute(f"CREATE TABLE {schema}.events (id integer)")
    with pytest.raises(SchemaError, match='"events" already exists, but durabus did not make it'):
        await opened(url)
    with psycopg.connect(postgresql_url) as admin:
        assert admin.execute(OBJECTS, [schema]).fetchall() == [("events",)]


OPEN = """
import asyncio, sys
from durabus.store.connect import open_store

async def main():
    sys.stdin.readline()
    store = await open_store(sys.argv[1])
    await store.verify()
    await store.close()

asyncio.run(main())
"""


@pytest.mark.processes
def test_ten_processes_open_a_new_schema_at_once(url: str, postgresql_url: str, schema: str) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", OPEN, url], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=45)
        assert process.returncode == 0, errors
    with psycopg.connect(postgresql_url) as admin:
        count = admin.execute(f"SELECT count(*) FROM {schema}.durabus_migrations").fetchone()
        assert count == (len(schemas.migrations()),)
