"""One of the two stores of a differential run: what it has returned, and what commands choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from durabus.errors import DurabusError
from durabus.model.claim import (
    Claim,
    ClaimRef,
    ClaimRequest,
    HandlerClaim,
    HandlerClaimRequest,
    LockClaim,
    OfferRequest,
)
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.settlement import Settlement
from durabus.model.statuses import EventMode, ResultStatus
from durabus.store.contract import EventStore


class SideStep(msgspec.Struct, frozen=True):
    """A verb, and numbers that choose its event and its details."""

    verb: str
    a: int
    b: int
    c: int


class Side:
    """One store, and the ids and claims that it has returned so far."""

    def __init__(self, store: EventStore, *, keys: bool, names: bool, children: bool, waits: bool) -> None:
        self.store = store
        self.gives_keys = keys
        """Whether events can have an ordering key: only if both stores support it."""
        self.asks_by_name = names
        """Whether claims can name one event: only if both stores support it."""
        self.has_children = children
        """Whether settlements can have children: only if both stores support it."""
        self.has_waits = waits
        """Whether settlements can have waits: only if both stores support it."""
        self.names: dict[int, str] = {}
        self.buses: dict[int, str] = {}
        self.ids: list[int] = []
        self.claims: list[ClaimRef] = [ClaimRef(999_999, made_name("token", 0), 1)]
        self.current: list[ClaimRef] = []
        self.requests: list[ClaimRequest] = []
        self.handlers: list[HandlerClaim] = []
        self.handler_requests: list[HandlerClaimRequest] = []
        self.running: list[HandlerClaim] = []
        self.offers: list[OfferRequest] = []
        self.locks: list[LockClaim] = []
        self.settled: list[Settlement] = []
        self.tokens = 0

    def token(self) -> str:
        """Return a new token. It is the same for both stores."""
        self.tokens += 1
        name = made_name("token", self.tokens)
        return name if self.tokens % 2 else INCARNATIONS[self.tokens // 2 % 2] + name[:20]

    def learn(self, events: Sequence[Event]) -> list[Event]:
        """Remember which id belongs to which event."""
        for event in events:
            if event.id not in self.names:
                self.names[event.id] = event.event_id
                self.ids.append(event.id)
            self.buses[event.id] = event.bus
        return list(events)

    def granted(self, claims: list[Claim]) -> list[Claim]:
        """Remember granted claims, and children that only settlements have published."""
        self.learn([claim.event for claim in claims])
        new = [claim.ref for claim in claims if claim.ref not in self.claims]
        self.claims += new
        self.current += new
        return claims

    def ended(self, refs: Sequence[ClaimRef]) -> None:
        """Remember which claims were settled."""
        self.current = [ref for ref in self.current if ref not in refs]

    def ref(self, step: SideStep) -> ClaimRef:
        """Return a claim that was granted before, mostly an open one, sometimes with a wrong token or fence."""
        among = self.current if self.current and step.c % 6 else self.claims
        found = among[step.a % len(among)]
        match step.c % 12:
            case 0:
                return ClaimRef(found.id, self.token(), found.fence)
            case 1:
                return ClaimRef(found.id, found.token, found.fence + 1)
            case _:
                return found

    def id(self, step: SideStep) -> int:
        """Return an event that was published before, or an unknown one."""
        return self.ids[step.a % len(self.ids)] if self.ids and step.c % 15 else 888_888

    def plain(self, value: Any) -> Any:
        """Return a reply without what can differ between stores: ids, positions, fences of locks, reasons."""
        if isinstance(value, DurabusError):
            return type(value).__name__
        if isinstance(value, list | tuple):
            return [self.plain(one) for one in value]
        if isinstance(value, msgspec.Struct):
            hidden = {"position", "next"} | ({"fence"} if isinstance(value, LockClaim) else set())
            fields = {field: getattr(value, field) for field in value.__struct_fields__ if field not in hidden}
            if isinstance(value, Event | LogEntry):
                self.names.setdefault(value.id, value.event_id)  # a child of a settlement may not be known yet
            return {field: self._name(field, item) for field, item in fields.items()}
        return value

    def _name(self, field: str, item: Any) -> Any:
        if field in ("id", "next_before_id") and isinstance(item, int):
            return self.names.get(item, item)
        if field == "results":
            return sorted((self.plain(one) for one in item), key=lambda result: str(result["handler_id"]))
        if field == "value_json" and isinstance(item, str) and item.startswith(MET):
            return MET + item.partition(",")[2]  # the number of the event that met a wait
        return self.plain(item)


def made_name(kind: str, number: int) -> str:
    """Return a token or an event id. It is the same for both stores."""
    return f"{'0' if kind == 'token' else '1'}{number:07}-0000-7000-8000-000000000000"


INCARNATIONS = ("~0000000000a", "~0000000000b")
"""Half of the tokens belong to one of two processes."""
BUSES = ("orders", "mail")
WORKERS = ("host-a:1", "host-b:2")
TAGS = ((), ("eu",), ("us",), ("eu", "us"))
KEYED = (None, None, '{"ordering_key":"a"}', '{"ordering_key":"b","n":1}', '{"n":1}')
MODES = (EventMode.PARALLEL, EventMode.PARALLEL, EventMode.BUS_SERIAL, EventMode.GLOBAL_SERIAL)
MET = '{"event":{"id":'
HANDLERS = ("a", "b", "c")
OUTCOMES = (ResultStatus.SUCCEEDED, ResultStatus.SUCCEEDED, ResultStatus.TRANSIENT, ResultStatus.UNRECOVERABLE)
LEASE = 10.0
