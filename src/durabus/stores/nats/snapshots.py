"""Snapshots in their own stream. The pieces get a new name; then one compare-and-set step replaces the manifest.

If another node was faster, that last step fails. The next snapshot deletes the pieces that were left.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NATSError
from nats.errors import NoRespondersError

from durabus.errors import SchemaError, StoreUnavailableError
from durabus.stores.nats.layout import NatsLayout
from durabus.stores.nats.stream import api
from durabus.stores.replicated_log.transport import GapError, Manifest, SnapshotPart, UnknownOutcomeError

ANSWER_WITHIN = 10.0
CHUNK = 512 * 1024
AT_ONCE = 8
"""The number of pieces that are requested together."""
WRONG_SEQUENCE = 10071
_PARTS = msgspec.msgpack.Decoder(list[SnapshotPart])
_ENCODER = msgspec.msgpack.Encoder()


class ManifestMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message of the manifest."""

    manifest: Manifest
    name: str
    chunks: int
    fence: int
    checksum: int
    """The checksum of all pieces."""


class NatsSnapshots:
    """Reads and replaces the newest snapshot."""

    def __init__(self, client: Client, layout: NatsLayout, *, largest: int) -> None:
        self._client = client
        self._layout = layout
        self._chunk = min(CHUNK, largest)

    async def newest(self) -> Manifest | None:
        """Return the manifest of the newest snapshot."""
        kept, _ = await self._kept()
        return None if kept is None else kept.manifest

    async def read(self, manifest: Manifest) -> AsyncIterator[SnapshotPart]:
        """Yield all parts of the snapshot. Raises ``GapError`` if a newer one replaced it."""
        kept, _ = await self._kept()
        if kept is None or kept.manifest != manifest:
            raise GapError("the snapshot was replaced while it was read")
        checksum = 0
        for first in range(0, kept.chunks, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, kept.chunks))
            for found in await asyncio.gather(*(self._get(self._layout.chunk(kept.name, n)) for n in numbers)):
                if found is None:
                    raise GapError("the snapshot was replaced while it was read")
                checksum = zlib.crc32(found[0], checksum)
                for part in self._decoded(found[0]):
                    yield part
        if checksum != kept.checksum:
            raise self._damaged(f"its pieces have the checksum {checksum:08x}, not {kept.checksum:08x}")

    async def write(self, manifest: Manifest, parts: AsyncIterator[SnapshotPart], *, fence: int) -> bool:
        """Write a snapshot that replaces the old one. False if another node was faster."""
        before, sequence = await self._kept()
        if before is not None and (before.fence > fence or before.manifest.position >= manifest.position):
            return False
        name = f"{fence}-{'-'.join(map(str, manifest.position))}"
        chunks, size, checksum = 0, 0, 0
        pending: list[SnapshotPart] = []

        async def put_pending() -> int:
            chunk = _ENCODER.encode(pending)
            await self._put(self._layout.chunk(name, chunks), chunk)
            return zlib.crc32(chunk, checksum)

        async for part in parts:
            if size + len(part.rows) > self._chunk and pending:
                checksum = await put_pending()
                chunks, pending, size = chunks + 1, [], 0
            pending.append(part)
            size += len(part.rows) + len(part.key) + 32
        checksum = await put_pending()
        kept = ManifestMessage(manifest=manifest, name=name, chunks=chunks + 1, fence=fence, checksum=checksum)
        headers = {"Nats-Expected-Last-Subject-Sequence": str(sequence)}
        if not await self._put(self._layout.manifest, msgspec.json.encode(kept), headers):
            return False
        await self._sweep(name)
        return True

    async def _kept(self) -> tuple[ManifestMessage | None, int]:
        found = await self._get(self._layout.manifest)
        try:
            return (None, 0) if found is None else (msgspec.json.decode(found[0], type=ManifestMessage), found[1])
        except msgspec.MsgspecError as error:
            raise self._damaged(f"the message of {self._layout.manifest!r} cannot be read: {error}") from error

    def _decoded(self, chunk: bytes) -> list[SnapshotPart]:
        try:
            return _PARTS.decode(chunk)
        except msgspec.MsgspecError as error:
            raise self._damaged(f"a piece cannot be read: {error}") from error

    def _damaged(self, problem: str) -> SchemaError:
        return SchemaError(
            f"the snapshot in the stream {self._layout.snapshots!r} is damaged: {problem}. If a node still runs, purge "
            "that stream: the node then writes a new snapshot. If none does, restore the stream from a backup"
        )

    async def _get(self, subject: str) -> tuple[bytes, int] | None:
        try:
            reply = await self._client.request(
                f"$JS.API.DIRECT.GET.{self._layout.snapshots}.{subject}", b"", timeout=ANSWER_WITHIN
            )
        except NoRespondersError as error:
            raise StoreUnavailableError(f"the stream {self._layout.snapshots!r} does not reply") from error
        except (NATSError, TimeoutError) as error:
            raise UnknownOutcomeError(f"no snapshot from NATS: {error!r}") from error
        headers = reply.headers or {}
        return None if "Status" in headers else (reply.data, int(headers["Nats-Sequence"]))

    async def _put(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> bool:
        try:
            reply = await self._client.request(subject, body, timeout=ANSWER_WITHIN, headers=headers)
        except (NATSError, TimeoutError) as error:
            raise UnknownOutcomeError(f"NATS did not confirm a snapshot: {error!r}") from error
        answer = msgspec.json.decode(reply.data)
        if "error" not in answer:
            return True
        if answer["error"].get("err_code") == WRONG_SEQUENCE:
            return False
        raise StoreUnavailableError(f"JetStream refused a snapshot: {answer['error'].get('description')}")

    async def _sweep(self, name: str) -> None:
        """Delete the pieces of earlier snapshots, finished or not."""
        stream = self._layout.snapshots
        subjects = f"{self._layout.prefix}.snapshot.chunk.>"
        info = await api(self._client, f"STREAM.INFO.{stream}", {"subjects_filter": subjects}, timeout=ANSWER_WITHIN)
        names = {subject.split(".")[3] for subject in info["state"].get("subjects") or {}}
        for old in names - {name}:
            request = {"filter": self._layout.chunk(old, ">")}
            await api(self._client, f"STREAM.PURGE.{stream}", request, timeout=ANSWER_WITHIN)
