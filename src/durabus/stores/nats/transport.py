"""The two lanes of the replicated log on one JetStream stream. Its sequence is the order of both lanes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec
from nats.errors import Error as NATSError

from durabus.errors import SchemaError, StoreError, StoreUnavailableError
from durabus.store.outage import SELDOM, Outage
from durabus.stores.nats.follower import NatsFollower
from durabus.stores.nats.lane_client import LaneClient, NatsOutgoing
from durabus.stores.nats.layout import NatsLayout
from durabus.stores.nats.snapshots import NatsSnapshots
from durabus.stores.nats.stream import STREAM_NOT_FOUND, APIError, api, ensure_streams, verify_log
from durabus.stores.replicated_log.records import Doubt
from durabus.stores.replicated_log.transport import (
    BrokerRecord,
    GapError,
    Position,
    PublicRecord,
    RefusedError,
    UnknownOutcomeError,
)

logger = logging.getLogger("durabus.nats")

ANSWER_WITHIN = 5.0
"""Seconds. A request that takes longer is sent again. Nodes recognise a record that comes twice."""
HEADROOM = 512
"""Bytes of a message that are reserved for its headers."""
NAMES = 20
"""An upper bound for the bytes of a header besides its value."""
STORE_FAILED = 10077
"""JetStream's error code for a full stream or a full disk."""
UNAVAILABLE = 503
REFUSED = "authorization violation"


class _Ack(msgspec.Struct):
    seq: int = 0
    error: dict[str, object] | None = None


_ACK = msgspec.json.Decoder(_Ack)


class NatsTransport:
    """``Transport`` for NATS."""

    def __init__(self, url: str, layout: NatsLayout, *, replicas: int, timeout: float) -> None:
        self._url = url
        self._shown = f"nats://{urlsplit(url).netloc.rpartition('@')[2]}"
        self._outage = Outage(logger, f"the store on {self._shown} fails", second_line=SELDOM)
        self._layout = layout
        self._replicas = replicas
        self._timeout = timeout
        self._connected: LaneClient | None = None
        self._snapshots: NatsSnapshots | None = None
        self._follower: NatsFollower | None = None
        self._reached = 0
        self._created = ""
        self.largest = 0

    @property
    def name(self) -> str:
        return f"the NATS stream {self._layout.stream!r}"

    @property
    def _client(self) -> LaneClient:
        if self._connected is None:
            raise StoreUnavailableError("not connected to NATS")
        return self._connected

    @property
    def snapshots(self) -> NatsSnapshots:
        if self._snapshots is None:
            raise StoreUnavailableError("not connected to NATS")
        return self._snapshots

    async def open(self) -> None:
        problem: Exception | None = None

        async def complain(error: Exception) -> None:
            nonlocal problem
            problem = error
            if client.is_connected:
                logger.info("NATS: %s", repr(error))
                return
            self._outage.failed(error)  # the driver tries to connect ten times a second
            if REFUSED in str(error).lower() and not opened:
                # The driver would retry for ever, but it passes this exception on to the caller of connect().
                raise StoreError(
                    f"{self._shown} does not accept the user or password of the URL ({error}): check both"
                ) from error

        client, opened = LaneClient(), False
        self._connected = client
        try:
            async with asyncio.timeout(self._timeout):
                await client.connect(
                    self._url,
                    error_cb=complain,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.1,  # type: ignore[arg-type]  # it is only slept for
                    ping_interval=5,
                    max_outstanding_pings=2,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                )
        except (NATSError, OSError, TimeoutError) as error:
            why = repr(problem or error)
            raise StoreUnavailableError(f"cannot connect to {self._shown}: {why}. Is the server running?") from error
        opened = True
        self._outage.answered()
        self.largest = self._connected.max_payload - HEADROOM
        await ensure_streams(self._connected, self._layout, replicas=self._replicas, timeout=ANSWER_WITHIN)
        self._snapshots = NatsSnapshots(self._connected, self._layout, largest=self.largest)

    async def verify(self) -> None:
        await verify_log(self._client, self._layout, timeout=ANSWER_WITHIN)

    async def close(self) -> None:
        client, self._connected = self._connected, None
        if client is not None:
            with contextlib.suppress(NATSError, OSError, TimeoutError):  # all accepted records were confirmed before
                await client.close()

    def refusal(self, record: PublicRecord) -> str | None:
        size = len(record.body) + len("".join(record.headers.values()).encode()) + NAMES * len(record.headers)
        if size <= self.largest:
            return None
        return (
            f"an event of {size:,} bytes with its headers is too large for this NATS server: the limit is "
            f"{self._client.max_payload:,}, raise its max_payload"
        )

    async def publish(self, records: Sequence[PublicRecord]) -> None:
        *before, last = (
            NatsOutgoing(self._layout.subject(one.type), {**one.headers, "Nats-Msg-Id": one.key}, one.body)
            for one in records
        )
        # The stream stores the messages of one connection in order, so the reply to the last one confirms all.
        await self._send(last, before)

    async def append(self, record: bytes, key: str, headers: Mapping[str, str]) -> None:
        await self._send(NatsOutgoing(self._layout.control, {**headers, "Nats-Msg-Id": key}, record))

    async def head(self) -> Position:
        reached = self._reached
        try:
            last, created = await self._end()
        except APIError as error:
            if error.code == STREAM_NOT_FOUND:
                self._look_again()
            raise
        if last < reached or created != self._created:
            self._look_again()
            raise StoreUnavailableError(f"the stream of {created} ends at {last}; this node has read up to {reached}")
        return (last,)

    def public_seen(self) -> int:
        return 0

    async def follow(self, after: Position, deliver: Callable[[Sequence[BrokerRecord]], None]) -> None:
        self._reached = after[0] if after else 0

        def deliver_and_remember(entries: Sequence[BrokerRecord]) -> None:
            (self._reached,) = entries[-1].position
            deliver(entries)

        while True:
            try:
                await self._check_end()
                self._outage.answered()
                self._follower = NatsFollower(self._client, self._layout, self._reached, deliver_and_remember)
                await self._follower.run()
            except (SchemaError, GapError):
                raise
            except (StoreUnavailableError, NATSError, TimeoutError) as error:
                self._outage.failed(error)
                await asyncio.sleep(0.1)

    async def trim(self, control: Position, public: Position) -> None:
        for subject, position in ((self._layout.control, control), (f"{self._layout.public}>", public)):
            if position:
                request = {"filter": subject, "seq": position[0] + 1}
                await api(self._client, f"STREAM.PURGE.{self._layout.stream}", request, timeout=self._timeout)

    async def _disconnected(self) -> None:
        if self._connected is not None:
            self._connected.give_up()  # so that requests are repeated now, not after their timeout

    async def _reconnected(self) -> None:
        self._outage.answered()
        self._look_again()  # the server may have deleted the consumer of the follower

    def _look_again(self) -> None:
        """Start reading again. That shows whether the log is still the one that was read."""
        if self._follower is not None:
            self._follower.end()

    async def _end(self) -> tuple[int, str]:
        """Return the last sequence, and when the stream was created."""
        info = await api(self._client, f"STREAM.INFO.{self._layout.stream}", timeout=ANSWER_WITHIN)
        return int(info["state"]["last_seq"]), str(info["created"])

    async def _check_end(self) -> None:
        """Raise ``Damage`` if the stream stays missing, or stays shorter than what was read."""
        doubt = Doubt((self._reached,))
        while True:
            try:
                last, self._created = await self._end()
            except APIError as error:
                if error.code != STREAM_NOT_FOUND:
                    raise
                await doubt.missing("the stream does not exist any more")
                continue
            if last >= self._reached:
                return
            await doubt.shorter(f"the stream ends at {last}, but this node has read up to {self._reached}")

    async def _send(self, last: NatsOutgoing, before: Sequence[NatsOutgoing] = ()) -> None:
        try:
            reply = await self._client.ask(last, after=before, within=ANSWER_WITHIN)
            ack = _ACK.decode(reply.data)
        except (NATSError, OSError, TimeoutError, msgspec.MsgspecError) as error:
            self._outage.failed(error)
            raise UnknownOutcomeError(f"no reply from NATS: {error!r}") from error
        if ack.error is not None:
            code = ack.error.get("err_code")
            why = f"JetStream refused a record: {ack.error.get('description')} (error {code})"
            passing = ack.error.get("code") == UNAVAILABLE and code != STORE_FAILED
            if not passing:
                raise RefusedError(why)
            unavailable = UnknownOutcomeError(why)
            self._outage.failed(unavailable)
            raise unavailable
        self._outage.answered()
