"""What the doctor says about a NATS server."""

from uuid import uuid4

import nats
import pytest

from durabus import open_store
from durabus.errors import StoreUnavailableError
from durabus.store.checks import Level, examine


async def findings(url: str) -> dict[str, tuple[Level, str]]:
    return {finding.setting: (finding.level, finding.value) for finding in await examine(url)}


async def test_a_server_alone_is_warned_about(nats_url: str) -> None:
    prefix = uuid4().hex
    url = f"{nats_url}?prefix={prefix}"
    (missing,) = await examine(url)
    assert (missing.level, missing.setting, missing.value) == ("error", "stream", prefix)
    await (await open_store(url)).close()
    alone = {"sync_interval": ("warning", "unknown"), "num_replicas": ("warning", "1")}
    assert await findings(url) == alone
    client = await nats.connect(nats_url)
    jetstream = client.jetstream()
    config = (await jetstream.stream_info(prefix)).config
    config.max_bytes = (await jetstream.stream_info(prefix)).state.bytes + 1
    await jetstream.update_stream(config)
    found = await findings(url)
    assert found.pop("max_bytes")[0] == "warning"
    assert found == alone
    config.max_age = 3600.0
    await jetstream.update_stream(config)
    (wrong,) = await examine(url)
    assert wrong.level == "error"
    assert "max_age" in wrong.advice
    await jetstream.delete_stream(prefix)
    await jetstream.delete_stream(f"{prefix}-snapshots")
    await client.close()


async def test_a_server_that_is_away_is_an_error() -> None:
    with pytest.raises(StoreUnavailableError):
        await examine("nats://127.0.0.1:1?timeout=0.2")
