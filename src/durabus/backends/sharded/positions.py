"""A position in the log of many shards: where each of them was, in their order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durabus.errors import InvalidEventError
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
