"""Checks of a Kafka cluster and the topics of the lanes: whether their settings keep accepted events."""

from __future__ import annotations

import asyncio

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from durabus.errors import SchemaError, StoreUnavailableError
from durabus.store.checks import Finding
from durabus.stores.kafka.layout import LARGEST, KafkaLayout
from durabus.stores.kafka.store import KafkaAddress, place
from durabus.stores.kafka.topics import QUIET, Topics

ANSWER_WITHIN = 10.0
SAFE_COPIES = 2


async def examine(url: str) -> list[Finding]:
    """Check the cluster and the topics, and return the findings."""
    return await asyncio.to_thread(_examine, place(url))


def _examine(where: KafkaAddress) -> list[Finding]:
    layout, timeout = KafkaLayout(where.options.prefix), min(where.options.timeout, ANSWER_WITHIN)
    topics = Topics(where.client, layout, replication=where.replication, timeout=timeout)
    brokers = _brokers(where, timeout)
    try:
        topics.verify()
    except SchemaError as error:
        return [Finding(level="error", setting="topics", value=layout.control, advice=str(error))]
    return [
        finding
        for name in (layout.control, layout.public)
        for finding in (*_copies(topics, name, brokers), *_settings(topics, name))
    ]


def _brokers(where: KafkaAddress, timeout: float) -> int:
    admin = AdminClient({**where.client, **QUIET})
    try:
        return len(admin.describe_cluster(request_timeout=timeout).result().nodes)
    except KafkaException as error:
        raise StoreUnavailableError(f"Kafka: {error.args[0].str()}") from error


def _copies(topics: Topics, name: str, brokers: int) -> list[Finding]:
    (partition,) = topics.partitions([name])[name]
    copies, in_sync = len(partition.replicas), len(partition.isr)
    found: list[Finding] = []
    if copies < SAFE_COPIES:
        advice = (
            "one broker has the only copy, and acknowledges before its disk has it. A power cut may lose the newest "
            "events, a broken disk all of them: give a new store replication=3"
        )
        value = f"{copies} on {brokers} broker{'s' if brokers != 1 else ''}"
        found.append(Finding(level="warning", setting=f"{name} replication", value=value, advice=advice))
    if in_sync < copies:
        advice = "copies are behind or not reachable: writing stops when fewer than min.insync.replicas are left"
        found.append(Finding(level="warning", setting=f"{name} in sync", value=f"{in_sync}/{copies}", advice=advice))
    return found


def _settings(topics: Topics, name: str) -> list[Finding]:
    config = topics.settings(name)
    found: list[Finding] = []
    (partition,) = topics.partitions([name])[name]
    least = config["min.insync.replicas"]
    if len(partition.replicas) >= SAFE_COPIES and int(least) < SAFE_COPIES:
        advice = "a write is acknowledged although only one broker has it, and is lost with that broker: set it to 2"
        found.append(Finding(level="warning", setting=f"{name} min.insync.replicas", value=least, advice=advice))
    if config["unclean.leader.election.enable"] == "true":
        advice = "a broker that lacks acknowledged records may become the leader, and they are lost: set it to false"
        found.append(
            Finding(level="error", setting=f"{name} unclean.leader.election.enable", value="true", advice=advice)
        )
    if int(config["max.message.bytes"]) < LARGEST:
        advice = f"large events and batches are refused: set it to {LARGEST:,} or more"
        found.append(
            Finding(
                level="warning", setting=f"{name} max.message.bytes", value=config["max.message.bytes"], advice=advice
            )
        )
    return found
