"""Where a URL leads."""

import os
from pathlib import Path

import pytest

from durabus.errors import ConfigurationError, StoreClosedError
from durabus.stores.sqlite.address import parse_url
from durabus.stores.sqlite.store import SQLiteStore


@pytest.mark.parametrize(
    ("url", "path", "synchronous"),
    [
        ("sqlite:///app.db", "app.db", "full"),
        ("sqlite:////var/lib/app.db", "/var/lib/app.db", "full"),
        ("sqlite:///data/my%20app.db", "data/my app.db", "full"),
        ("sqlite:///app.db?synchronous=NORMAL", "app.db", "normal"),
    ],
)
def test_three_slashes_are_relative_and_four_absolute(url: str, path: str, synchronous: str) -> None:
    address = parse_url(url)
    assert (address.path, address.synchronous) == (Path(path), synchronous)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://:memory:"])
def test_a_store_without_a_file_is_elsewhere(url: str) -> None:
    with pytest.raises(ConfigurationError, match="memory://"):
        parse_url(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://app.db", "sqlite:///app.db for a relative path"),
        ("sqlite:/var/lib/app.db", "sqlite:////var/lib/app.db for an absolute one"),
        ("sqlite:app.db", "sqlite:///app.db for a relative path"),
        ("sqlite:///app.db?mode=ro", r"no such option \['mode'\]"),
        ("sqlite:///app.db?synchronous=off", "must be 'full'"),
        ("sqlite:///a%00b.db", "cannot contain a NUL"),
    ],
)
def test_what_is_not_understood_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_url(url)


async def test_features_follow_the_options(tmp_path: Path) -> None:
    assert SQLiteStore.from_url(f"sqlite:///{tmp_path}/a.db").features.survives_power_loss
    assert not SQLiteStore.from_url(f"sqlite:///{tmp_path}/a.db?synchronous=normal").features.survives_power_loss


async def test_a_store_that_is_not_open_yet_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreClosedError, match="not open yet"):
        await SQLiteStore.from_url(f"sqlite:///{tmp_path}/a.db").counts()


async def test_two_names_of_one_file_share_one_lock(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    (tmp_path / "data").symlink_to(tmp_path)
    relative = os.path.relpath(tmp_path / "data" / "real.db")  # noqa: ASYNC240  (a test may wait for its folder)
    for url in (f"sqlite:///{tmp_path}/link.db", f"sqlite:///{tmp_path}/real.db", f"sqlite:///{relative}"):
        store = SQLiteStore.from_url(url)
        await store.open()
        assert store._file.lock.path == tmp_path / "real.db-durabus.lock"
        await store.close()
    names = {path.name for path in tmp_path.iterdir()}  # noqa: ASYNC240  (as above)
    assert names == {"link.db", "data", "real.db", "real.db-durabus.lock"}


@pytest.mark.parametrize(("option", "level"), [("", 2), ("?synchronous=normal", 1)])
async def test_a_store_waits_for_the_disk_unless_configured_otherwise(option: str, level: int, tmp_path: Path) -> None:
    store = SQLiteStore.from_url(f"sqlite:///{tmp_path}/bus.db{option}")
    await store.open()
    assert await store._write(lambda tx: tx.value("PRAGMA synchronous")) == level
    await store.close()
