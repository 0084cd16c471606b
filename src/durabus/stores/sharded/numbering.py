"""A position in the log of many shards: where each of them was, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from durabus.errors import EventNotFound, InvalidEventError, LeaseLost, NotADeadLetter
from durabus.model.claim import Claim, ClaimRef, HandlerClaim
from durabus.model.event import Event
from durabus.model.settlement import Settled, Settlement
from durabus.store.events import EventRef
from durabus.store.log import START

_VECTOR = msgspec.json.Decoder(list[str])
_SAVED = msgspec.json.Decoder(tuple[float, str])


def join(parts: Sequence[str]) -> str:
    """One position of the positions of all shards."""
    return START if all(part == START for part in parts) else msgspec.json.encode(list(parts)).decode()


def split(position: str, count: int) -> list[str]:
    """The position of each shard. Raises ``InvalidEventError`` for what this store did not make."""
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
    """A reader's position as a shard keeps it: with its time, because any shard may be asked for the newest."""
    return msgspec.json.encode((at_ts, position)).decode()


def newest(found: Sequence[str]) -> str:
    """The position that was saved last."""
    kept = [_SAVED.decode(one) for one in found if one != START]
    return max(kept, key=lambda one: one[0])[1] if kept else START


T = TypeVar("T")

HANDLER_LOCK = "handler:event:"


class Numbering:
    """Of ``count`` shards. It is part of every id that was ever given, so neither count nor order may change."""

    def __init__(self, count: int) -> None:
        self.count = count

    def of_event_id(self, event_id: str) -> int:
        """The shard of an event. What is no UUID is on none; any shard may say so."""
        try:
            return UUID(event_id).int % self.count
        except ValueError:
            return 0

    def of_ref(self, ref: EventRef) -> int:
        """The shard of an event that is named by ``id`` or ``event_id``."""
        return ref % self.count if isinstance(ref, int) else self.of_event_id(ref)

    def of_lock(self, key: str) -> int:
        """The shard of a lock: that of its event if handlers take it, else by its name."""
        if key.startswith(HANDLER_LOCK):
            return self.of_event_id(key.removeprefix(HANDLER_LOCK))
        return self.of_name(key)

    def of_name(self, name: str) -> int:
        """The same shard for a name in every process, for ever."""
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) % self.count

    def inner(self, id_: int) -> int:
        """An id as its shard knows it."""
        return id_ // self.count

    def inner_ref(self, ref: EventRef) -> EventRef:
        """A name of an event as its shard knows it."""
        return self.inner(ref) if isinstance(ref, int) else ref

    def inner_claim(self, ref: ClaimRef) -> ClaimRef:
        """A claim as its shard knows it."""
        return ClaimRef(self.inner(ref.id), ref.token, ref.fence)

    def inner_settlement(self, settlement: Settlement) -> Settlement:
        """A settlement as its shard knows it."""
        return msgspec.structs.replace(settlement, ref=self.inner_claim(settlement.ref))

    def inner_handler(self, claim: HandlerClaim) -> HandlerClaim:
        """A handler claim as its shard knows it."""
        return msgspec.structs.replace(claim, id=self.inner(claim.id))

    def inner_before(self, before_id: int, shard: int) -> int:
        """Ids below this one are, on the shard, those below the answer."""
        return -((shard - before_id) // self.count)

    def outer(self, id_: int, shard: int) -> int:
        """An id of a shard as everybody else knows it."""
        return id_ * self.count + shard

    def event(self, event: Event, shard: int) -> Event:
        """An event of a shard."""
        return msgspec.structs.replace(event, id=self.outer(event.id, shard))

    def claim(self, claim: Claim, shard: int) -> Claim:
        """A claim of a shard."""
        return msgspec.structs.replace(claim, event=self.event(claim.event, shard))

    def handler(self, claim: HandlerClaim, shard: int) -> HandlerClaim:
        """A handler claim of a shard."""
        return msgspec.structs.replace(claim, id=self.outer(claim.id, shard))

    def answer(self, value: T, shard: int) -> T:
        """What a batch call of a shard answered, one of the kinds that carry an id, or anything else as it is."""
        made: Any = value
        match value:
            case Event():
                made = self.event(value, shard)
            case Settled():
                made = msgspec.structs.replace(value, id=self.outer(value.id, shard))
            case ClaimRef():
                made = ClaimRef(self.outer(value.id, shard), value.token, value.fence)
            case LeaseLost(subject=int()):
                made = LeaseLost(self.outer(int(value.subject), shard), value.reason)
        answered: T = made
        return answered

    def error(self, error: Exception, shard: int) -> Exception:
        """An error of a shard that names an event."""
        match error:
            case EventNotFound(ref=int()):
                return EventNotFound(self.outer(int(error.ref), shard))
            case NotADeadLetter(ref=int()):
                return NotADeadLetter(self.outer(int(error.ref), shard), error.status)
            case LeaseLost():
                return self.answer(error, shard)
            case _:
                return error
