"""A broker's client that is not installed is named, with the command that installs it."""

import sys

import pytest

import durabus.stores
from durabus import open_store
from durabus.errors import UnknownStoreError


@pytest.mark.parametrize(
    ("scheme", "package", "extra"), [("nats", "nats", "nats"), ("kafka", "confluent_kafka", "kafka")]
)
async def test_a_missing_client_names_its_extra(
    scheme: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hasattr(durabus.stores, scheme):  # the attempt to import it again leaves another, half empty module there
        monkeypatch.setattr(durabus.stores, scheme, getattr(durabus.stores, scheme))
    for name in [name for name in sys.modules if name.split(".")[0] == package or f"stores.{scheme}" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnknownStoreError, match=rf"needs the package {package}.*pip install 'durabus\[{extra}\]'"):
        await open_store(f"{scheme}://localhost")
