"""Positions in the log of all shards, and which shard an event, a lock or a name belongs to.

::

    event_id as a number % N  =  shard  =  id % N
    id  =  the shard's own id * N + shard
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from durabus.errors import EventNotFound, InvalidEventError, LeaseLost, NotADeadLetter
from durabus.model.claim import Claim, ClaimRef, HandlerClaim
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.settlement import Keep, Settled, Settlement
from durabus.store.events import EventRef
from durabus.store.log import START

_VECTOR = msgspec.json.Decoder(list[str])
_SAVED = msgspec.json.Decoder(tuple[float, str])


def join(parts: Sequence[str]) -> str:
    """Return one position from the positions of all shards."""
    return START if all(part == START for part in parts) else msgspec.json.encode(list(parts)).decode()


def split(position: str, count: int) -> list[str]:
    """Return the position of each shard. Raises ``InvalidEventError`` for a position of another log."""
    if position == START:
        return [START] * count
    try:
        parts = _VECTOR.decode(position)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _foreign(position, count) from error
    if len(parts) != count or join(parts) != position:
        raise _foreign(position, count)
    return parts


def _foreign(position: str, count: int) -> InvalidEventError:
    return InvalidEventError(f"position={position!r}: not a position in the log of {count} shards")


def saved(at_ts: float, position: str) -> str:
    """Return a reader's position with its time, as a shard stores it: ``newest`` compares the times."""
    return msgspec.json.encode((at_ts, position)).decode()


def newest(found: Sequence[str]) -> str:
    """Return the position that was saved last."""
    kept = [_SAVED.decode(one) for one in found if one != START]
    return max(kept, key=lambda one: one[0])[1] if kept else START


T = TypeVar("T")

HANDLER_LOCK = "handler:event:"


class Numbering:
    """Converts ids of ``count`` shards. Every id contains the shard, so neither number nor order may change."""

    def __init__(self, count: int) -> None:
        self.count = count

    def of_event_id(self, event_id: str) -> int:
        """Return the shard of an event. For a text that is no UUID, any shard can say that there is no such event."""
        try:
            return UUID(event_id).int % self.count
        except ValueError:
            return 0

    def of_ref(self, ref: EventRef) -> int:
        """Return the shard of an event, given its ``id`` or ``event_id``."""
        return ref % self.count if isinstance(ref, int) else self.of_event_id(ref)

    def of_lock(self, key: str) -> int:
        """Return the shard of a lock: that of its event for a handler lock, else by its name."""
        if key.startswith(HANDLER_LOCK):
            return self.of_event_id(key.removeprefix(HANDLER_LOCK))
        return self.of_name(key)

    def of_name(self, name: str) -> int:
        """Return the shard of a name. It is the same in every process and version."""
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) % self.count

    def inner(self, id_: int) -> int:
        """Return the id that the shard uses."""
        return id_ // self.count

    def inner_ref(self, ref: EventRef) -> EventRef:
        """Return a reference to an event with the id that the shard uses."""
        return self.inner(ref) if isinstance(ref, int) else ref

    def inner_claim(self, ref: ClaimRef) -> ClaimRef:
        """Return a claim with the id that the shard uses."""
        return ClaimRef(self.inner(ref.id), ref.token, ref.fence)

    def inner_settlement(self, settlement: Settlement) -> Settlement:
        """Return a settlement with the id that the shard uses."""
        return msgspec.structs.replace(settlement, ref=self.inner_claim(settlement.ref))

    def inner_keep(self, keep: Keep) -> Keep:
        """Return kept results with the id that the shard uses."""
        ref = keep.ref
        return Keep(self.inner_claim(ref) if isinstance(ref, ClaimRef) else self.inner_handler(ref), keep.results)

    def inner_handler(self, claim: HandlerClaim) -> HandlerClaim:
        """Return a handler claim with the id that the shard uses."""
        return msgspec.structs.replace(claim, id=self.inner(claim.id))

    def inner_before(self, before_id: int, shard: int) -> int:
        """Return the bound that the shard uses for ids below ``before_id``."""
        return -((shard - before_id) // self.count)

    def outer(self, id_: int, shard: int) -> int:
        """Return the id in the sharded store for an id of a shard."""
        return id_ * self.count + shard

    def event(self, event: Event, shard: int) -> Event:
        """Return an event of a shard with its id in the sharded store."""
        return msgspec.structs.replace(event, id=self.outer(event.id, shard))

    def claim(self, claim: Claim, shard: int) -> Claim:
        """Return a claim of a shard with its id in the sharded store."""
        return msgspec.structs.replace(claim, event=self.event(claim.event, shard))

    def handler(self, claim: HandlerClaim, shard: int) -> HandlerClaim:
        """Return a handler claim of a shard with its id in the sharded store."""
        return msgspec.structs.replace(claim, id=self.outer(claim.id, shard))

    def entry(self, entry: LogEntry, shard: int) -> LogEntry:
        """Return a log entry of a shard. From its position, a reader reads the other shards from their beginning."""
        position = join([entry.position if one == shard else START for one in range(self.count)])
        return msgspec.structs.replace(entry, id=self.outer(entry.id, shard), position=position)

    def answer(self, value: T, shard: int) -> T:
        """Return a result of a shard with its id in the sharded store. A result without an id stays as it is."""
        made: Any = value
        match value:
            case Event():
                made = self.event(value, shard)
            case Settled():
                entry = None if value.entry is None else self.entry(value.entry, shard)
                made = msgspec.structs.replace(value, id=self.outer(value.id, shard), entry=entry)
            case ClaimRef():
                made = ClaimRef(self.outer(value.id, shard), value.token, value.fence)
            case LeaseLost(subject=int()):
                made = LeaseLost(self.outer(int(value.subject), shard), value.reason)
        answered: T = made
        return answered

    def error(self, error: Exception, shard: int) -> Exception:
        """Return an error of a shard with its id in the sharded store. An error without an id stays as it is."""
        match error:
            case EventNotFound(ref=int()):
                return EventNotFound(self.outer(int(error.ref), shard))
            case NotADeadLetter(ref=int()):
                return NotADeadLetter(self.outer(int(error.ref), shard), error.status)
            case LeaseLost():
                return self.answer(error, shard)
            case _:
                return error
