"""Checks of a NATS server and the stream of the log: whether their settings keep accepted events."""

from __future__ import annotations

import asyncio
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error as NATSError

from durabus.errors import SchemaError, StoreUnavailableError
from durabus.model.limits import MAX_PAYLOAD_BYTES
from durabus.store.checks import Finding, Level
from durabus.stores.nats.layout import NatsLayout
from durabus.stores.nats.store import REPLICAS, server_url
from durabus.stores.nats.stream import api, verify_log
from durabus.stores.nats.transport import ANSWER_WITHIN, HEADROOM
from durabus.stores.replicated_log.options import options_from_url

OLDEST = (2, 10)
FULL = 0.9
SAFE_COPIES = 3


async def examine(url: str) -> list[Finding]:
    """Check the server, the limits of this account, and the stream if there is one."""
    options = options_from_url(url, REPLICAS)
    try:
        async with asyncio.timeout(min(options.timeout, ANSWER_WITHIN)):
            client = await nats.connect(server_url(url), error_cb=_ignore)
    except (NATSError, OSError, TimeoutError) as error:
        raise StoreUnavailableError(f"cannot connect to NATS: {error!r}") from error
    try:
        layout = NatsLayout(options.prefix)
        account = await api(client, "INFO", timeout=ANSWER_WITHIN)
        try:
            await verify_log(client, layout, timeout=ANSWER_WITHIN)
        except SchemaError as error:
            stream = [Finding(level="error", setting="stream", value=layout.stream, advice=str(error))]
        else:
            info = await api(client, f"STREAM.INFO.{layout.stream}", timeout=ANSWER_WITHIN)
            stream = _stream(info)
        return [*_server(client), *_account(account), *stream]
    finally:
        await client.close()


async def _ignore(_error: Exception) -> None:
    """Ignore an error of the connection. The call that fails reports it; the driver would print it too."""


def _server(client: Client) -> list[Finding]:
    found: list[Finding] = []
    version = client.connected_server_version
    if (version.major, version.minor) < OLDEST:
        advice = "durabus is tested on 2.10 and newer: upgrade the server"
        found.append(Finding(level="warning", setting="version", value=str(version), advice=advice))
    wanted = MAX_PAYLOAD_BYTES + HEADROOM
    if client.max_payload < wanted:
        advice = f"the largest events are refused: set max_payload to {wanted:,} or more"
        found.append(Finding(level="warning", setting="max_payload", value=f"{client.max_payload:,}", advice=advice))
    return found


def _account(account: dict[str, Any]) -> list[Finding]:
    used, limit = int(account.get("storage", 0)), int(account.get("limits", {}).get("max_storage", -1))
    if limit > 0 and used > FULL * limit:
        advice = "soon nothing can be published: raise max_storage of this account"
        return [Finding(level="warning", setting="max_storage", value=f"{used:,} of {limit:,}", advice=advice)]
    return []


def _stream(info: dict[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    config, state = info["config"], info["state"]
    copies = int(config.get("num_replicas", 1))
    level: Level = "note" if copies >= SAFE_COPIES else "warning"
    advice = (
        "the server does not show this setting to clients. By default a power cut of every copy loses up to 2 minutes: "
        "set sync_interval: always in its jetstream block"
    )
    found.append(Finding(level=level, setting="sync_interval", value="unknown", advice=advice))
    if copies < SAFE_COPIES:
        advice = "the disk of one server is the only copy: use a cluster, and replicas=3 in the URL of a new store"
        found.append(Finding(level="warning", setting="num_replicas", value=str(copies), advice=advice))
    behind = [peer["name"] for peer in info.get("cluster", {}).get("replicas", ()) if not peer.get("current")]
    if behind:
        advice = "these copies are behind or not reachable: the stream stops when too few are left"
        found.append(Finding(level="warning", setting="replicas_behind", value=", ".join(behind), advice=advice))
    limit = int(config.get("max_bytes", -1))
    if limit > 0 and int(state["bytes"]) > FULL * limit:
        advice = "soon nothing can be published: raise max_bytes, or lower public_kept"
        found.append(
            Finding(level="warning", setting="max_bytes", value=f"{state['bytes']:,} of {limit:,}", advice=advice)
        )
    return found
