"""What the doctor says about a PostgreSQL server."""

import psycopg
import pytest

from durabus.errors import StoreUnavailableError
from durabus.store.checks import Level, examine
from durabus.stores.postgresql import checks
from durabus.stores.postgresql.store import PostgreSQLStore


async def findings(url: str) -> dict[str, tuple[Level, str]]:
    return {finding.setting: (finding.level, finding.value) for finding in await examine(url)}


async def test_a_schema_that_is_not_there_is_an_error(url: str, schema: str, postgresql_url: str) -> None:
    (finding,) = await examine(url)
    assert (finding.level, finding.setting, finding.value) == ("error", "schema", schema)
    assert "durabus db migrate" in finding.advice
    with psycopg.connect(postgresql_url) as connection:
        assert connection.execute("SELECT to_regnamespace(%s)", [schema]).fetchone() == (None,)


async def test_settings_that_lose_events_are_found(store: PostgreSQLStore, url: str, postgresql_database: str) -> None:
    assert await findings(url) == {}
    with psycopg.connect(postgresql_database, autocommit=True) as connection:
        name = postgresql_database.rpartition("/")[2]
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off".encode())
    found = await findings(postgresql_database)
    assert found.pop("schema")[0] == "error"
    assert found == {"synchronous_commit": ("error", "off")}


async def test_every_needed_setting_is_looked_at(
    store: PostgreSQLStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server runs as it should, so the test makes the doctor want the opposite.
    other = {name: ("other", level, advice) for name, (_, level, advice) in checks.NEEDED.items()}
    monkeypatch.setattr(checks, "NEEDED", other)
    assert await findings(url) == dict.fromkeys(
        ("fsync", "full_page_writes", "autovacuum", "track_counts"), ("error", "on")
    )


async def test_a_transaction_that_is_kept_open_is_found(
    store: PostgreSQLStore, url: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "LONG_TRANSACTION", -1.0)
    with admin.transaction():
        admin.execute("SELECT pg_current_xact_id()")
        assert (await findings(url))["oldest_transaction"][0] == "warning"


async def test_a_server_that_is_away_is_an_error() -> None:
    with pytest.raises(StoreUnavailableError):
        await examine("postgresql://nobody@127.0.0.1:1/none?connect_timeout=1")
