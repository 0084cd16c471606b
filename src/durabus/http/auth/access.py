"""Who may do what with which events."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from durabus.http.problems import Problem
from durabus.model.event import Event


class Scope(StrEnum):
    """What a token is for. ``admin`` includes the others."""

    PUBLISH = "publish"
    CLAIM = "claim"
    READ = "read"
    ADMIN = "admin"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who sent a request. No tags, or no buses, means all of them."""

    name: str
    scopes: frozenset[Scope]
    tags: frozenset[str] = frozenset()
    buses: frozenset[str] = frozenset()

    @property
    def limited(self) -> bool:
        """Whether there may be events that this one must not know of."""
        return bool(self.tags or self.buses)

    def holds(self, scope: Scope) -> bool:
        """Whether requests of this kind are allowed at all."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def sees(self, event: Event) -> bool:
        """Whether the stored event is one of theirs: its bus, and at least one of its tags."""
        return self.may_use_bus(event.bus) and (not self.tags or not self.tags.isdisjoint(event.tags))

    def may_use_bus(self, bus: str) -> bool:
        """Whether the bus is one of theirs."""
        return not self.buses or bus in self.buses

    def check_bus(self, bus: str) -> str:
        """Refuse a bus that is not theirs."""
        if not self.may_use_bus(bus):
            raise Problem(403, f"this token is limited to the buses {_listed(self.buses)}, {bus!r} is not one of them")
        return bus

    def check_new(self, tags: Iterable[str]) -> None:
        """Refuse to publish what they could not see, or what would land among the events of others."""
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
        """The tags to look for: those asked for, which must be theirs, or all that are theirs."""
        if not self.tags:
            return tags
        if not tags:
            return tuple(sorted(self.tags))
        strangers = frozenset(tags) - self.tags
        if strangers:
            raise Problem(403, f"this token is limited to the tags {_listed(self.tags)}{_strangers(strangers)}")
        return tags

    def check_whole_bus(self, what: str) -> None:
        """Refuse what cannot be done for some tags only."""
        if self.tags:
            raise Problem(
                403, f"{what} concerns all events, and this token is limited to the tags {_listed(self.tags)}"
            )


EVERYBODY = Principal(name="loopback", scopes=frozenset(Scope))
"""Whoever is on this machine, while there are no tokens."""


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _strangers(names: frozenset[str]) -> str:
    return f"; not allowed: {_listed(names)}" if names else ""
