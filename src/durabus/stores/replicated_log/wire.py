"""Settlements and claim references as compact records. Most of a busy log consists of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import msgspec

from durabus.model.claim import ClaimRef, HandlerClaim
from durabus.model.event import NewEvent
from durabus.model.result import HandlerResult
from durabus.model.settlement import Cancel, Complete, Fail, Keep, Release, Settlement

Ref = tuple[int, str, int]
"""A packed ``ClaimRef``."""


class PackedCompletion(msgspec.Struct, frozen=True, array_like=True, tag="c", omit_defaults=True):
    """A packed ``Complete``."""

    ref: Ref
    execution_time_ms: float | None = None
    status_code: int | None = None
    results: tuple[HandlerResult, ...] = ()
    errors: tuple[str, ...] = ()
    reason: str | None = None
    handler_id: str | None = None
    children: tuple[NewEvent, ...] = ()

    def settlements(self) -> list[Settlement]:
        """Return the settlement as a list."""
        ref, ms, code = ClaimRef(*self.ref), self.execution_time_ms, self.status_code
        rest = (self.reason, self.handler_id, self.children)
        return [Complete(ref, self.results, self.errors, ms, code, *rest)]


class PackedCompletions(msgspec.Struct, frozen=True, array_like=True, tag="d", omit_defaults=True):
    """Many plain ``Complete`` of one claim. Most of a busy log consists of these."""

    token: str
    fence: int
    ids: tuple[int, ...]
    times: tuple[float | None, ...]
    """``execution_time_ms`` of each."""
    handler_ids: tuple[str | None, ...] = (None,)
    """``handler_id`` of each, or only one if all have the same."""

    def __post_init__(self) -> None:
        """Check when the record is read: a command is applied as a whole or not at all."""
        if len(self.ids) != len(self.times):
            raise ValueError(f"{len(self.ids)} completions with {len(self.times)} times")
        if len(self.handler_ids) not in (1, len(self.ids)):
            raise ValueError(f"{len(self.ids)} completions with {len(self.handler_ids)} handlers")

    @property
    def items(self) -> Iterable[tuple[int, float | None, str | None]]:
        """Id, time and handler of each."""
        handlers = repeat(self.handler_ids[0]) if len(self.handler_ids) == 1 else self.handler_ids
        return zip(self.ids, self.times, handlers, strict=False)

    def settlements(self) -> list[Settlement]:
        """Return the settlements."""
        token, fence = self.token, self.fence
        return [
            Complete(ClaimRef(id_, token, fence), (), (), time, handler_id=handler_id)
            for id_, time, handler_id in self.items
        ]


class PackedFailure(msgspec.Struct, frozen=True, array_like=True, tag="f", omit_defaults=True):
    """A packed ``Fail``."""

    ref: Ref
    error: str
    delay: float | None
    execution_time_ms: float | None = None
    status_code: int | None = None
    results: tuple[HandlerResult, ...] = ()
    children: tuple[NewEvent, ...] = ()

    def settlements(self) -> list[Settlement]:
        """Return the settlement as a list."""
        ref, ms, code = ClaimRef(*self.ref), self.execution_time_ms, self.status_code
        return [Fail(ref, self.error, self.delay, self.results, ms, code, self.children)]


class Returned(msgspec.Struct, frozen=True, array_like=True, tag="r", omit_defaults=True):
    """A packed ``Release``."""

    ref: Ref
    delay: float = 0.0
    results: tuple[HandlerResult, ...] = ()
    reason: str | None = None
    children: tuple[NewEvent, ...] = ()
    until_children: bool = False

    def settlements(self) -> list[Settlement]:
        """Return the settlement as a list."""
        ref = ClaimRef(*self.ref)
        return [Release(ref, self.delay, self.results, self.reason, self.children, self.until_children)]


class PackedCancellation(msgspec.Struct, frozen=True, array_like=True, tag="x", omit_defaults=True):
    """A packed ``Cancel``."""

    ref: Ref
    reason: str
    results: tuple[HandlerResult, ...] = ()

    def settlements(self) -> list[Settlement]:
        """Return the settlement as a list."""
        return [Cancel(ClaimRef(*self.ref), self.reason, self.results)]


PackedKeep = tuple[Ref | HandlerClaim, tuple[HandlerResult, ...], tuple[NewEvent, ...]]
"""A packed ``Keep``."""

PackedSettlement = PackedCompletion | PackedCompletions | PackedFailure | Returned | PackedCancellation


def wire(settlements: Sequence[Settlement]) -> tuple[PackedSettlement, ...]:
    """Pack settlements for ``SettleEvents``. Consecutive plain completions of one claim become one item."""
    sent: list[PackedSettlement] = []
    ids: list[int] = []
    times: list[float | None] = []
    handlers: list[str | None] = []
    token, fence = "", 0

    def end_run() -> None:
        if ids:
            same = handlers.count(handlers[0]) == len(handlers)
            handler_ids = (handlers[0],) if same else tuple(handlers)
            sent.append(PackedCompletions(token, fence, tuple(ids), tuple(times), handler_ids))
            ids.clear()
            times.clear()
            handlers.clear()

    for one in settlements:
        ref = one.ref
        if type(one) is not Complete or not one.is_plain:
            end_run()
            sent.append(_single(one))
            continue
        if ref.token != token or ref.fence != fence:
            end_run()
            token, fence = ref.token, ref.fence
        ids.append(ref.id)
        times.append(one.execution_time_ms)
        handlers.append(one.handler_id)
    end_run()
    return tuple(sent)


def _single(settlement: Settlement) -> PackedSettlement:
    ref = wire_ref(settlement.ref)
    match settlement:
        case Complete(results=results, errors=errors, execution_time_ms=ms, status_code=code, reason=reason):
            return PackedCompletion(ref, ms, code, results, errors, reason, settlement.handler_id, settlement.children)
        case Fail(error=error, delay=delay, results=results, execution_time_ms=ms, status_code=code):
            return PackedFailure(ref, error, delay, ms, code, results, settlement.children)
        case Release(delay=delay, results=results, reason=reason, until_children=until_children):
            return Returned(ref, delay, results, reason, settlement.children, until_children)
        case Cancel(reason=reason, results=results):
            return PackedCancellation(ref, reason, results)


def packed_keep(keep: Keep) -> PackedKeep:
    """Pack results that are kept."""
    ref = wire_ref(keep.ref) if isinstance(keep.ref, ClaimRef) else keep.ref
    return ref, keep.results, keep.children


def unpacked_keep(packed: PackedKeep) -> Keep:
    """Return what ``packed_keep`` has packed."""
    ref, results, children = packed
    return Keep(ref if isinstance(ref, HandlerClaim) else ClaimRef(*ref), results, children)


def wire_ref(ref: ClaimRef) -> Ref:
    """Pack a claim reference for commands."""
    return ref.id, ref.token, ref.fence
