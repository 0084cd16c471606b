"""What the doctor says about a Kafka cluster."""

from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from durabus import open_store
from durabus.errors import StoreUnavailableError
from durabus.store.checks import examine


def alter(kafka_url: str, topic: str, setting: str, value: str) -> None:
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka_url.removeprefix("kafka://")})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result()


async def test_a_broker_alone_is_warned_about_and_bad_settings_are_errors(kafka_url: str) -> None:
    prefix = f"t{uuid4().hex}"
    url = f"{kafka_url}?prefix={prefix}"
    (missing,) = await examine(url)
    assert (missing.level, missing.setting) == ("error", "topics")
    await (await open_store(url)).close()
    lanes = [f"{prefix}.control", f"events.{prefix}"]
    alone = {(f"{lane} replication", "warning", "1 on 1 broker") for lane in lanes}
    assert {(one.setting, one.level, one.value) for one in await examine(url)} == alone
    alter(kafka_url, lanes[0], "unclean.leader.election.enable", "true")
    alter(kafka_url, lanes[1], "max.message.bytes", "1000000")
    found = {(one.setting, one.level, one.value) for one in await examine(url)} - alone
    assert found == {
        (f"{lanes[0]} unclean.leader.election.enable", "error", "true"),
        (f"{lanes[1]} max.message.bytes", "warning", "1000000"),
    }
    alter(kafka_url, lanes[0], "retention.ms", "1000")
    (wrong,) = await examine(url)
    assert wrong.level == "error"
    assert "retention.ms=1000" in wrong.advice


async def test_a_broker_that_is_away_is_an_error() -> None:
    with pytest.raises(StoreUnavailableError):
        await examine("kafka://127.0.0.1:1?timeout=0.3")
