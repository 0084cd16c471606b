"""One store in a differential run, and what its answers have given so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from durabus.errors import DurabusError
from durabus.model.claim import Claim, ClaimRef, ClaimRequest, HandlerClaim, LockClaim
from durabus.model.event import Event
from durabus.model.settlement import Settlement
from durabus.store.contract import EventStore


class Step(msgspec.Struct, frozen=True):
    """A verb and numbers that choose its subject and its details."""

    verb: str
    a: int
    b: int
    c: int


class Side:
    """One store and what its answers have given so far."""

    def __init__(self, store: EventStore, *, keys: bool, names: bool) -> None:
        self.store = store
        self.gives_keys = keys
        """Whether its events may have an ordering key: only if the other store keeps their order too."""
        self.asks_by_name = names
        """Whether its claims may ask for one event: only if the other store understands that too."""
        self.names: dict[int, str] = {}
        self.ids: list[int] = []
        self.claims: list[ClaimRef] = [ClaimRef(999_999, made_name("token", 0), 1)]
        self.current: list[ClaimRef] = []
        self.requests: list[ClaimRequest] = []
        self.handlers: list[HandlerClaim] = []
        self.running: list[HandlerClaim] = []
        self.locks: list[LockClaim] = []
        self.settled: list[Settlement] = []
        self.tokens = 0

    def token(self) -> str:
        """A new token, the same on both sides."""
        self.tokens += 1
        return made_name("token", self.tokens)

    def learn(self, events: Sequence[Event]) -> list[Event]:
        """Remember which id belongs to which event."""
        for event in events:
            if event.id not in self.names:
                self.names[event.id] = event.event_id
                self.ids.append(event.id)
        return list(events)

    def granted(self, claims: list[Claim]) -> list[Claim]:
        """Remember granted claims."""
        new = [claim.ref for claim in claims if claim.ref not in self.claims]
        self.claims += new
        self.current += new
        return claims

    def ended(self, refs: Sequence[ClaimRef]) -> None:
        """Remember which claims were settled."""
        self.current = [ref for ref in self.current if ref not in refs]

    def ref(self, step: Step) -> ClaimRef:
        """A claim given so far, mostly one not settled yet; sometimes with a wrong token or fence."""
        among = self.current if self.current and step.c % 6 else self.claims
        found = among[step.a % len(among)]
        match step.c % 12:
            case 0:
                return ClaimRef(found.id, self.token(), found.fence)
            case 1:
                return ClaimRef(found.id, found.token, found.fence + 1)
            case _:
                return found

    def id(self, step: Step) -> int:
        """An event published so far, or none."""
        return self.ids[step.a % len(self.ids)] if self.ids and step.c % 15 else 888_888

    def plain(self, value: Any) -> Any:
        """An answer without what may differ between stores: ids, positions, lock fences, reasons."""
        if isinstance(value, DurabusError):
            return type(value).__name__
        if isinstance(value, list | tuple):
            return [self.plain(one) for one in value]
        if isinstance(value, msgspec.Struct):
            hidden = {"position", "next"} | ({"fence"} if isinstance(value, LockClaim) else set())
            fields = {field: getattr(value, field) for field in value.__struct_fields__ if field not in hidden}
            return {field: self._name(field, item) for field, item in fields.items()}
        return value

    def _name(self, field: str, item: Any) -> Any:
        if field in ("id", "next_before_id") and isinstance(item, int):
            return self.names.get(item, item)
        if field == "results":
            return sorted((self.plain(one) for one in item), key=lambda result: str(result["handler_id"]))
        return self.plain(item)


def made_name(kind: str, number: int) -> str:
    """A token or an event id, the same on both sides."""
    return f"{'0' if kind == 'token' else '1'}{number:07}-0000-7000-8000-000000000000"
