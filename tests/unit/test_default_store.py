"""The default store: one rule for the bus, the store, the command line and the server."""

from pathlib import Path

import pytest

from durabus import EventBus, EventStore, SyncEventBus, open_store
from durabus.cli.options import Common, store_url
from durabus.http.app import create_app


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DURABUS_STORE", raising=False)


async def stores_by_default() -> list[EventStore]:
    opened = await open_store()
    await opened.close()
    return [EventBus().store, SyncEventBus().bus.store, create_app().api.store, opened]


async def test_without_a_name_the_store_is_a_sqlite_file_in_the_working_folder(tmp_path: Path) -> None:
    async with EventBus() as bus:
        await bus.publish("order.placed")
    assert (tmp_path / "durabus.db").exists()
    assert {store.features.scheme for store in await stores_by_default()} == {"sqlite"}
    assert store_url(Common()) == "sqlite:///durabus.db"


@pytest.mark.parametrize(("variable", "scheme"), [("memory://", "memory"), ("", "sqlite")])
async def test_the_environment_names_the_store_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch, variable: str, scheme: str
) -> None:
    monkeypatch.setenv("DURABUS_STORE", variable)
    assert {store.features.scheme for store in await stores_by_default()} == {scheme}


async def test_what_is_acknowledged_by_default_is_there_after_a_restart() -> None:
    async with EventBus() as bus:
        event_id = await bus.publish("order.placed")
    store = await open_store()
    assert await store.get_event(event_id) is not None
    await store.close()
