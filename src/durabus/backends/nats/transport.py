"""The fold's lanes on one JetStream stream. The stream's sequence is the order of both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
import nats
from nats.aio.client import Client
from nats.errors import Error as NATSError

from durabus.backends.fold.transport import (
    Entry,
    GapError,
    Manifest,
    Part,
    Position,
    PublicRecord,
    RefusedError,
    UnknownOutcomeError,
)
from durabus.backends.nats.follower import Follower
from durabus.backends.nats.layout import Layout
from durabus.backends.nats.snapshots import Snapshots
from durabus.backends.nats.stream import api, ensure_streams, verify_log
from durabus.errors import SchemaError, StoreUnavailableError

logger = logging.getLogger("durabus.nats")

ANSWER_WITHIN = 5.0
"""A request that takes longer is sent again; the records know that they are repeats."""
HEADROOM = 512
"""Bytes of a message for its own headers."""
STORE_FAILED = 10077
"""The stream is full, or its disk is."""
UNAVAILABLE = 503


class _Ack(msgspec.Struct):
    seq: int = 0
    error: dict[str, object] | None = None


_ACK = msgspec.json.Decoder(_Ack)


class NatsTransport:
    """``Transport`` for NATS."""

    def __init__(self, url: str, layout: Layout, *, replicas: int, timeout: float) -> None:
        self._url = url
        self._layout = layout
        self._replicas = replicas
        self._timeout = timeout
        self._connected: Client | None = None
        self._snapshots: Snapshots | None = None
        self._follower: Follower | None = None
        self.largest = 0

    @property
    def _client(self) -> Client:
        if self._connected is None:
            raise StoreUnavailableError("not connected to NATS")
        return self._connected

    @property
    def _kept(self) -> Snapshots:
        if self._snapshots is None:
            raise StoreUnavailableError("not connected to NATS")
        return self._snapshots

    async def open(self) -> None:
        async def complain(error: Exception) -> None:
            logger.info("NATS: %s", repr(error))

        try:
            async with asyncio.timeout(self._timeout):
                self._connected = await nats.connect(
                    self._url,
                    error_cb=complain,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.1,
                    ping_interval=5,
                    max_outstanding_pings=2,
                    reconnected_cb=self._reconnected,
                )
        except (NATSError, OSError, TimeoutError) as error:
            raise StoreUnavailableError(f"cannot connect to NATS: {error!r}") from error
        self.largest = self._connected.max_payload - HEADROOM
        await ensure_streams(self._connected, self._layout, replicas=self._replicas, timeout=ANSWER_WITHIN)
        self._snapshots = Snapshots(self._connected, self._layout, largest=self.largest)

    async def verify(self) -> None:
        await verify_log(self._client, self._layout, timeout=ANSWER_WITHIN)

    async def close(self) -> None:
        client, self._connected = self._connected, None
        if client is not None:
            with contextlib.suppress(NATSError, OSError, TimeoutError):  # what matters was acknowledged before
                await client.close()

    def refusal(self, record: PublicRecord) -> str | None:
        size = len(record.body) + sum(
            len(name.encode()) + len(value.encode()) + 4 for name, value in record.headers.items()
        )
        if size <= self.largest:
            return None
        return (
            f"an event of {size:,} bytes with its headers is too large for this NATS server, which takes "
            f"{self._client.max_payload:,}: raise its max_payload"
        )

    async def publish(self, records: Sequence[PublicRecord]) -> None:
        for record in records[:-1]:
            await self._send(record, wait=False)
        # The stream takes the messages of one connection in their order: the last one's reply speaks for all.
        await self._send(records[-1], wait=True)

    async def append(self, record: bytes, key: str) -> None:
        await self._request(self._layout.control, record, {"Nats-Msg-Id": key})

    async def head(self) -> Position:
        state = (await api(self._client, f"STREAM.INFO.{self._layout.stream}", timeout=ANSWER_WITHIN))["state"]
        return (int(state["last_seq"]),)

    def public_seen(self) -> int:
        return 0

    async def follow(self, after: Position, deliver: Callable[[Sequence[Entry]], None]) -> None:
        reached = after[0] if after else 0
        while True:
            try:
                self._check_end((await self.head())[0], reached)
                self._follower = Follower(self._client, self._layout, reached, deliver)
                reached = await self._follower.run()
            except (SchemaError, GapError):
                raise
            except (StoreUnavailableError, NATSError, TimeoutError) as error:
                logger.info("reading the stream again: %s", repr(error))
                await asyncio.sleep(0.1)

    async def newest_snapshot(self) -> Manifest | None:
        return await self._kept.newest()

    def read_snapshot(self, manifest: Manifest) -> AsyncIterator[Part]:
        return self._kept.read(manifest)

    async def write_snapshot(self, manifest: Manifest, parts: AsyncIterator[Part], *, fence: int) -> bool:
        return await self._kept.write(manifest, parts, fence=fence)

    async def trim(self, control: Position, public: Position) -> None:
        for subject, position in ((self._layout.control, control), (f"{self._layout.public}>", public)):
            if position:
                request = {"filter": subject, "seq": position[0] + 1}
                await api(self._client, f"STREAM.PURGE.{self._layout.stream}", request, timeout=self._timeout)

    async def _reconnected(self) -> None:
        if self._follower is not None:
            self._follower.end()  # the server may have forgotten its consumer

    def _check_end(self, head: int, reached: int) -> None:
        if head < reached:
            raise SchemaError(
                f"the stream {self._layout.stream!r} ends at {head}, but this node has read up to {reached}: "
                "it was deleted and made anew, or its disk lost acknowledged records"
            )

    async def _send(self, record: PublicRecord, *, wait: bool) -> None:
        subject, headers = self._layout.subject(record.type), {**record.headers, "Nats-Msg-Id": record.key}
        if wait:
            await self._request(subject, record.body, headers)
            return
        try:
            await self._client.publish(subject, record.body, headers=headers)
        except (NATSError, OSError) as error:
            raise UnknownOutcomeError(f"NATS: {error!r}") from error

    async def _request(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        try:
            reply = await self._client.request(subject, body, timeout=ANSWER_WITHIN, headers=headers)
            ack = _ACK.decode(reply.data)
        except (NATSError, OSError, TimeoutError, msgspec.MsgspecError) as error:
            raise UnknownOutcomeError(f"no reply from NATS: {error!r}") from error
        if ack.error is not None:
            code = ack.error.get("err_code")
            why = f"JetStream refused a record: {ack.error.get('description')} (error {code})"
            passing = ack.error.get("code") == UNAVAILABLE and code != STORE_FAILED
            raise (UnknownOutcomeError if passing else RefusedError)(why)
