"""Which sender may send which requests, for which events, and under which names its events are stored.

The holder of a limited token must neither find out which names others use nor take those names. So the server stores
the keys, ids and claim tokens that such a token sends under the token's scope. The scope is the set of tags, so a new
token with the same tags continues where the old one ended. The server stores names from an unlimited token unchanged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from uuid import UUID

import msgspec

from durabus.errors import InvalidEventError
from durabus.http.problems import Code, Problem
from durabus.model.event import ORDERING_KEY, Event, NewEvent, ordering_key_of
from durabus.model.limits import MAX_NAME_CHARS
from durabus.model.payload import decode_payload, encode_payload
from durabus.model.result import HandlerResult
from durabus.schedules.schedule import SCHEDULE
from durabus.store.contract import EventStore
from durabus.views.steps import without_foreign_events

SCOPE_DIGITS = 24
KEY_PREFIX = re.compile(rf"^@[0-9a-f]{{{SCOPE_DIGITS}}}@")
METADATA_PREFIX = re.compile(rf'("(?:{ORDERING_KEY}|{SCHEDULE})":\s*")@[0-9a-f]{{{SCOPE_DIGITS}}}@')
UUID_FREE_BITS = ~((0xF << 76) | (0x3 << 62))
UUID_VERSION_8 = (0x8 << 76) | (0x2 << 62)
MAX_KEY_CHARS = MAX_NAME_CHARS - SCOPE_DIGITS - 2
"""Maximum length of a key that a tag-limited token sends: the server stores its scope in front of it."""


class Scope(StrEnum):
    """A kind of request that a token allows. ``admin`` includes the others."""

    PUBLISH = "publish"
    CLAIM = "claim"
    READ = "read"
    ADMIN = "admin"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a request. Without tags it may use all tags; without buses, all buses."""

    name: str
    scopes: frozenset[Scope]
    tags: frozenset[str] = frozenset()
    buses: frozenset[str] = frozenset()

    @property
    def limited(self) -> bool:
        """Whether there may be events that this sender must not know of."""
        return bool(self.tags or self.buses)

    def holds(self, scope: Scope) -> bool:
        """Whether this sender may send requests that need ``scope``."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def sees(self, event: Event) -> bool:
        """Whether this sender may see the stored event: its bus, and at least one of its tags."""
        return self.may_use_bus(event.bus) and self.sees_tags(event.tags)

    def sees_tags(self, tags: Iterable[str]) -> bool:
        """Whether this sender may see what carries these tags, on a bus that it may use."""
        return not self.tags or not self.tags.isdisjoint(tags)

    def sees_as_much_as(self, other: Principal) -> bool:
        """Whether this sender may see every event that ``other`` may see."""
        tags = not self.tags or (bool(other.tags) and other.tags <= self.tags)
        return tags and (not self.buses or (bool(other.buses) and other.buses <= self.buses))

    def may_use_bus(self, bus: str) -> bool:
        """Whether this sender may use the bus."""
        return not self.buses or bus in self.buses

    def check_bus(self, bus: str) -> str:
        """Return the bus, or refuse it if this sender may not use it."""
        if not self.may_use_bus(bus):
            raise Problem(403, f"this token is limited to the buses {_listed(self.buses)}, {bus!r} is not one of them")
        return bus

    def check_new(self, tags: Iterable[str]) -> None:
        """Refuse tags with which the sender could not see its own event, or other tenants could."""
        if not self.tags:
            return
        given = frozenset(tags)
        if not given or not given <= self.tags:
            raise Problem(
                403,
                f"this token is limited to the tags {_listed(self.tags)}: an event needs at least one of them and "
                f"may have no other{_not_allowed(given - self.tags)}",
            )

    def narrow(self, tags: tuple[str, ...]) -> tuple[str, ...]:
        """The tags to search for: ``tags``, which this sender must be allowed to use, or else all it may use."""
        if not self.tags:
            return tags
        if not tags:
            return tuple(sorted(self.tags))
        foreign_tags = frozenset(tags) - self.tags
        if foreign_tags:
            raise Problem(403, f"this token is limited to the tags {_listed(self.tags)}{_not_allowed(foreign_tags)}")
        return tags

    def check_whole_bus(self, what: str) -> None:
        """Refuse a request that cannot be limited to some tags."""
        if self.tags:
            raise Problem(
                403, f"{what} concerns all events, and this token is limited to the tags {_listed(self.tags)}"
            )


LOCAL_SENDER = Principal(name="loopback", scopes=frozenset(Scope))
"""The sender of every request from this machine, on a server without tokens."""


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _not_allowed(foreign_tags: frozenset[str]) -> str:
    return f"; not allowed: {_listed(foreign_tags)}" if foreign_tags else ""


def scoped(principal: Principal, new: NewEvent, *, own_id: bool) -> NewEvent:
    """The event as the server stores it. ``own_id``: the sender chose the ``event_id``.

    Stores keep keys per bus, so only tags need a scope there. An ``event_id`` is unique across all buses.
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
    """The events with their stored parents. Refuses a parent that the sender may not see.

    A parent waits for its children, so a sender could otherwise block an event of another tenant. ``parent_id`` is the
    ``event_id`` that the parent's publisher sent, or the one that the API shows.
    """
    if not principal.limited:
        return list(new)
    wanted = list(dict.fromkeys(ref for one in new if one.parent_id for ref in _names(principal, one)))
    found = await store.get_events(wanted) if wanted else []
    known = {event.event_id for event in found if event is not None and principal.sees(event)}
    known |= {one.event_id for one in new}
    return [one if one.parent_id is None else _with_parent(principal, one, known) for one in new]


def shown(principal: Principal, event: Event) -> Event:
    """The event with keys as the tenant sent them, without the scope. An unlimited token sees the stored keys."""
    if not principal.tags:
        return event
    key, metadata = event.idempotency_key, event.metadata_json
    return msgspec.structs.replace(
        event,
        idempotency_key=None if key is None else KEY_PREFIX.sub("", key),
        metadata_json=None if metadata is None else METADATA_PREFIX.sub(r"\1", metadata),
    )


def scoped_name(principal: Principal, name: str) -> str:
    """The name of a schedule as the server stores it."""
    return _scoped_key(principal, name, "name") if principal.tags else name


def shown_results(principal: Principal, bus: str, results: Sequence[HandlerResult]) -> Sequence[HandlerResult]:
    """The results of an event on this bus, without events that met a wait and that the sender may not see."""
    if not principal.limited:
        return results
    return without_foreign_events(
        bus, results, lambda event: shown(principal, event) if principal.sees(event) else None
    )


def scoped_id(principal: Principal, bus: str, event_id: str) -> str:
    """A UUIDv8 made from the scope and the id, so no sender can choose an id of another scope."""
    named = "\n".join((*sorted(principal.tags), "", bus, event_id))
    number = int.from_bytes(hashlib.sha256(named.encode()).digest()[:16])
    return str(UUID(int=number & UUID_FREE_BITS | UUID_VERSION_8))


def scoped_token(principal: Principal, token: str) -> str:
    """The token of a claim as the server stores and shows it. Equal tokens of two scopes become different ones."""
    if not principal.limited:
        return token
    named = "\n".join((*sorted(principal.tags), "", *sorted(principal.buses), "", token))
    return hashlib.sha256(named.encode()).hexdigest()[: len(token)]


def _names(principal: Principal, new: NewEvent) -> tuple[str, ...]:
    assert new.parent_id is not None  # noqa: S101  (the callers check that there is one)
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
