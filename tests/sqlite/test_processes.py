"""Locks on the database file that show that a process lives."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from durabus import EventStore, new_event, open_store
from durabus.model.claim import ClaimRequest, new_incarnation, new_token
from durabus.stores.sqlite.store import SQLiteStore


async def claimed(store: EventStore, incarnation: str) -> None:
    await store.add_events([new_event("a")])
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(incarnation))
    assert len(await store.claim_next_events(request)) == 1


def is_open(file: Path) -> bool:
    """Return whether this process has a descriptor of the file, which may be deleted."""
    links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return any(str(link.readlink()).removesuffix(" (deleted)") == str(file) for link in links)


async def test_two_stores_of_one_process_see_each_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bus.db'}"
    one, two, name = await open_store(url), await open_store(url), new_incarnation()
    await one.show_presence(name)
    await claimed(one, name)
    assert (await two.ended_processes()).incarnations == []
    assert await two.end_process(name) == 0
    await one.close()
    assert (await two.ended_processes()).incarnations == [], "the process lives, and may still run the handler"
    await two.close()


async def test_a_deleted_file_is_not_kept_open_for_the_claims_in_it(tmp_path: Path) -> None:
    deleted, other = tmp_path / "deleted.db", f"sqlite:///{tmp_path / 'other.db'}"
    store, name = await open_store(f"sqlite:///{deleted}"), new_incarnation()
    await store.show_presence(name)
    await claimed(store, name)
    await store.close()
    await (await open_store(other)).close()
    assert is_open(deleted), "the process lives, and may still run the handler"
    deleted.unlink()
    await (await open_store(other)).close()
    assert not is_open(deleted), "the disk space must become free"


async def test_a_foreign_close_of_the_file_is_not_the_end_of_the_process(tmp_path: Path) -> None:
    store, name = await open_store(f"sqlite:///{tmp_path / 'bus.db'}"), new_incarnation()
    await store.show_presence(name)
    await claimed(store, name)
    (tmp_path / "bus.db").read_bytes()
    assert await store.end_process(name) == 0
    await store.close()


async def test_a_copy_of_the_file_has_no_processes(tmp_path: Path) -> None:
    store, name = await open_store(f"sqlite:///{tmp_path / 'bus.db'}"), new_incarnation()
    await store.show_presence(name)
    await claimed(store, name)
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"bus.db{suffix}", tmp_path / f"copy.db{suffix}")
    copy = await open_store(f"sqlite:///{tmp_path / 'copy.db'}")
    assert (await copy.ended_processes()).incarnations == [name]
    assert await copy.end_process(name) == 1
    assert await store.end_process(name) == 0
    await copy.close()
    await store.close()


async def test_a_look_uses_no_sql_while_every_process_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'bus.db'}")
    await store.ended_processes()

    async def read(*_arguments: Any) -> Any:
        raise AssertionError("a look must not read the database")

    monkeypatch.setattr(SQLiteStore, "_read", read)
    assert (await store.ended_processes()).incarnations == []
    await store.close()


async def test_a_token_that_only_looks_like_one_of_a_process_is_left_alone(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'bus.db'}")
    await store.add_events([new_event("a")])
    for token in ("~", "~9 of my own", "~00000000000"[:5]):
        await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=token))
        assert (await store.ended_processes()).incarnations == []
    await store.close()
