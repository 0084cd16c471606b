"""Keys, ids and claim tokens of limited tokens.

The holder of a limited token must neither find out which names others use nor take them away. So what such a token
sends is stored under names of its scope. The scope is the set of tags, so a new token with the same tags goes on
where the old one ended. Names that an unlimited token sends are stored as they are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from uuid import UUID

import msgspec

from durabus.errors import InvalidEventError
from durabus.http.auth.access import Principal
from durabus.http.problems import Code, Problem
from durabus.model.event import ORDERING_KEY, Event, NewEvent, ordering_key_of
from durabus.model.limits import MAX_NAME_CHARS
from durabus.model.payload import decode_payload, encode_payload
from durabus.store.contract import EventStore

SCOPE_DIGITS = 24
KEY_PREFIX = re.compile(rf"^@[0-9a-f]{{{SCOPE_DIGITS}}}@")
METADATA_PREFIX = re.compile(rf'("{ORDERING_KEY}":\s*")@[0-9a-f]{{{SCOPE_DIGITS}}}@')
UUID_FREE_BITS = ~((0xF << 76) | (0x3 << 62))
UUID_VERSION_8 = (0x8 << 76) | (0x2 << 62)
MAX_KEY_CHARS = MAX_NAME_CHARS - SCOPE_DIGITS - 2
"""Of a key that a tag-limited token sends: its scope is stored in front of it."""


def scoped(principal: Principal, new: NewEvent, *, own_id: bool) -> NewEvent:
    """The event as the store gets it. ``own_id``: the sender chose the ``event_id``.

    Stores keep keys by bus, so only tags need a scope there. An ``event_id`` is one for all buses.
    """
    if not principal.limited:
        return new
    changes = {"event_id": scoped_id(principal, new.bus, new.event_id)} if own_id else {}
    if principal.tags and new.idempotency_key is not None:
        changes["idempotency_key"] = _scoped_key(principal, new.idempotency_key, "idempotency_key")
    key = None if new.metadata_json is None else ordering_key_of(new.metadata_json)
    if principal.tags and new.metadata_json is not None and key is not None:
        changes["metadata_json"] = _with_key(new.metadata_json, _scoped_key(principal, key, ORDERING_KEY))
    return msgspec.structs.replace(new, **changes) if changes else new


async def with_parents(principal: Principal, store: EventStore, new: Sequence[NewEvent]) -> list[NewEvent]:
    """The events with parents that are the sender's own: a parent waits for its children, so a stranger's could hang.

    A parent is named by the ``event_id`` that its publisher sent or by the one that the API shows.
    """
    if not principal.limited:
        return list(new)
    wanted = list(dict.fromkeys(ref for one in new if one.parent_id for ref in _names(principal, one)))
    found = await store.get_events(wanted) if wanted else []
    known = {event.event_id for event in found if event is not None and principal.sees(event)}
    known |= {one.event_id for one in new}
    return [one if one.parent_id is None else _with_parent(principal, one, known) for one in new]


def shown(principal: Principal, event: Event) -> Event:
    """The event as its tenants wrote it: keys without the scope. An unlimited token sees what is stored."""
    if not principal.tags:
        return event
    key, metadata = event.idempotency_key, event.metadata_json
    return msgspec.structs.replace(
        event,
        idempotency_key=None if key is None else KEY_PREFIX.sub("", key),
        metadata_json=None if metadata is None else METADATA_PREFIX.sub(r"\1", metadata),
    )


def scoped_id(principal: Principal, bus: str, event_id: str) -> str:
    """A UUIDv8 made from the scope and the id: nobody can choose an id that becomes another scope's."""
    named = "\n".join((*sorted(principal.tags), "", bus, event_id))
    number = int.from_bytes(hashlib.sha256(named.encode()).digest()[:16])
    return str(UUID(int=number & UUID_FREE_BITS | UUID_VERSION_8))


def scoped_token(principal: Principal, token: str) -> str:
    """The token of a claim as the store gets it, and as the claim shows it: whoever sends an equal one has another."""
    if not principal.limited:
        return token
    named = "\n".join((*sorted(principal.tags), "", *sorted(principal.buses), "", token))
    return hashlib.sha256(named.encode()).hexdigest()[: len(token)]


def _names(principal: Principal, new: NewEvent) -> tuple[str, ...]:
    assert new.parent_id is not None  # noqa: S101  (asked only where there is one)
    return scoped_id(principal, new.bus, new.parent_id), new.parent_id


def _with_parent(principal: Principal, new: NewEvent, known: set[str]) -> NewEvent:
    parent = next((name for name in _names(principal, new) if name in known), None)
    if parent is None:
        raise Problem(
            400,
            f"parent_id={new.parent_id!r}: this token sees no event with this event_id",
            code=Code.UNKNOWN_PARENT,
        )
    return msgspec.structs.replace(new, parent_id=parent)


def _scoped_key(principal: Principal, key: str, what: str) -> str:
    if len(key) > MAX_KEY_CHARS:
        raise InvalidEventError(
            f"{what} has {len(key)} characters ({key[:40]!r}…): the limit is {MAX_KEY_CHARS} for a token that is "
            "limited to tags"
        )
    return _prefix(principal.tags) + key


@lru_cache(maxsize=1024)
def _prefix(tags: frozenset[str]) -> str:
    digits = hashlib.sha256("\n".join(sorted(tags)).encode()).hexdigest()
    return f"@{digits[:SCOPE_DIGITS]}@"


def _with_key(metadata_json: str, key: str) -> str:
    return encode_payload({**decode_payload(metadata_json), ORDERING_KEY: key}, "metadata")
