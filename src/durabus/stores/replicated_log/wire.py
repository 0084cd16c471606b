"""Settlements and claim references as compact records. Most of a busy log consists of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durabus.model.claim import ClaimRef
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement

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

    def settlements(self) -> list[Settlement]:
        """Return the settlement as a list."""
        ref, ms, code = ClaimRef(*self.ref), self.execution_time_ms, self.status_code
        return [Complete(ref, self.results, self.errors, ms, code, self.reason)]


class PackedCompletions(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """Many plain ``Complete`` of one claim. Most of a busy log consists of these."""

    token: str
    fence: int
    ids: tuple[int, ...]
    times: tuple[float | None, ...]
    """``execution_time_ms`` of each."""

    def __post_init__(self) -> None:
        """Check when the record is read: a command is applied as a whole or not at all."""
        if len(self.ids) != len(self.times):
            raise ValueError(f"{len(self.ids)} completions with {len(self.times)} times")

    def settlements(self) -> list[Settlement]:
        """Return the settlements."""
        token, fence = self.token, self.fence
        return [
            Complete(ClaimRef(id_, token, fence), (), (), time) for id_, time in zip(self.ids, self.times, strict=True)
        ]


class PackedFailure(msgspec.Struct, frozen=True, array_like=True, tag="f", omit_defaults=True):
    """A packed ``Fail``."""

    ref: Ref
    error: str
    delay: float | None
    execution_time_ms: float | None = None
    status_code: int | None = None
    results: tuple[HandlerResult, ...] = ()

    def settlements(self) -> list[Settlement]:
        """Return the settlement as a list."""
        ref = ClaimRef(*self.ref)
        return [Fail(ref, self.error, self.delay, self.results, self.execution_time_ms, self.status_code)]


class Returned(msgspec.Struct, frozen=True, array_like=True, tag="r", omit_defaults=True):
    """A packed ``Release``."""

    ref: Ref
    delay: float = 0.0
    results: tuple[HandlerResult, ...] = ()
    reason: str | None = None

    def settlements(self) -> list[Settlement]:
        """Return the settlement as a list."""
        return [Release(ClaimRef(*self.ref), self.delay, self.results, self.reason)]


PackedKeep = tuple[Ref, tuple[HandlerResult, ...]]
"""A packed ``Keep``."""

PackedSettlement = PackedCompletion | PackedCompletions | PackedFailure | Returned


def wire(settlements: Sequence[Settlement]) -> tuple[PackedSettlement, ...]:
    """Pack settlements for ``SettleEvents``. Consecutive plain completions of one claim become one item."""
    sent: list[PackedSettlement] = []
    ids: list[int] = []
    times: list[float | None] = []
    token, fence = "", 0

    def end_run() -> None:
        if ids:
            sent.append(PackedCompletions(token, fence, tuple(ids), tuple(times)))
            ids.clear()
            times.clear()

    for one in settlements:
        ref = one.ref
        if type(one) is not Complete or not _is_plain(one):
            end_run()
            sent.append(_single(one))
            continue
        if ref.token != token or ref.fence != fence:
            end_run()
            token, fence = ref.token, ref.fence
        ids.append(ref.id)
        times.append(one.execution_time_ms)
    end_run()
    return tuple(sent)


def _is_plain(one: Complete) -> bool:
    return not one.results and not one.errors and one.status_code is None and one.reason is None


def _single(settlement: Settlement) -> PackedSettlement:
    ref = wire_ref(settlement.ref)
    match settlement:
        case Complete(results=results, errors=errors, execution_time_ms=ms, status_code=code, reason=reason):
            return PackedCompletion(ref, ms, code, results, errors, reason)
        case Fail(error=error, delay=delay, results=results, execution_time_ms=ms, status_code=code):
            return PackedFailure(ref, error, delay, ms, code, results)
        case Release(delay=delay, results=results, reason=reason):
            return Returned(ref, delay, results, reason)


def wire_ref(ref: ClaimRef) -> Ref:
    """Pack a claim reference for commands."""
    return ref.id, ref.token, ref.fence
