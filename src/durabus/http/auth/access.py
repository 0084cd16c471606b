"""Which sender may send which requests, for which events."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from durabus.http.problems import Problem
from durabus.model.event import Event


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
        return self.may_use_bus(event.bus) and (not self.tags or not self.tags.isdisjoint(event.tags))

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
                f"may have no other{_strangers(given - self.tags)}",
            )

    def narrow(self, tags: tuple[str, ...]) -> tuple[str, ...]:
        """The tags to search for: ``tags``, which this sender must be allowed to use, or else all it may use."""
        if not self.tags:
            return tags
        if not tags:
            return tuple(sorted(self.tags))
        strangers = frozenset(tags) - self.tags
        if strangers:
            raise Problem(403, f"this token is limited to the tags {_listed(self.tags)}{_strangers(strangers)}")
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


def _strangers(names: frozenset[str]) -> str:
    return f"; not allowed: {_listed(names)}" if names else ""
